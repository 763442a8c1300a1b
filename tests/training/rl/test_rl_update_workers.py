"""Saved experience trained by DeepSpeed in real processes: world sizes and ZeRO stages give one loss curve."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from policy_samples import experience, rl_config
from training_samples import documents

from afm_core.training.rl.experience import write_experience
from afm_core.training.tiny import make_tiny

pytestmark = pytest.mark.integration

STEPS = 2


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and the experience of one step."""
    folder = tmp_path_factory.mktemp("update")
    (folder / "base").mkdir()
    make_tiny(documents(), folder / "base", seed=0)
    write_experience(experience(10, vocabulary=250, longest=48), folder)
    return folder


def job(root: Path, name: str, chunk: int = 512, **values: Any) -> dict[str, Any]:
    """Two updates a step, so that old log-probabilities are scored; entropy and reference take part in the loss."""
    settings = {"updates": 2, "entropy_coefficient": 0.01, "kl_coefficient": 0.1, "warmup_steps": 2, **values}
    return {
        "config": rl_config(**settings).model_dump(mode="json"),
        "base": str(root / "base"),
        "experience": str(root),
        "result": str(root / f"{name}.json"),
        "steps": STEPS,
        "chunk": chunk,
    }


def run_jobs(root: Path, jobs: list[dict[str, Any]], world_size: int) -> None:
    path = root / f"jobs-{world_size}.json"
    path.write_text(json.dumps(jobs))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    script = str(Path(__file__).with_name("update_process.py"))
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(world_size), port, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        outputs = [process.communicate(timeout=240)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0] * world_size, outputs[0][-4000:]


@pytest.fixture(scope="module")
def results(root: Path) -> dict[str, dict[str, Any]]:
    """By name; one process runs its jobs one after the other, then two processes theirs."""
    run_jobs(root, [job(root, "alone"), job(root, "alone-zero1", zero_stage=1, micro_batch_tokens=200)], 1)
    jobs = [job(root, f"pair-zero{stage}", zero_stage=stage, world_size=2) for stage in range(3)]
    # Chunks of 14 supervised tokens: the ranks have 1 to 3 of them in the same micro-batch, and ZeRO-3 gathers the
    # head once a chunk. It was waited for ever before the ranks agreed on a number.
    jobs.append(job(root, "pair-zero3", chunk=14, zero_stage=3, world_size=2))
    run_jobs(root, jobs, 2)
    return {path.stem: json.loads(path.read_text()) for path in root.glob("*.json") if not path.stem.startswith("jobs")}


OTHERS = ["alone-zero1", "pair-zero0", "pair-zero1", "pair-zero2", "pair-zero3"]


@pytest.mark.parametrize("name", OTHERS)
def test_world_size_and_zero_stage_do_not_change_the_update(results: dict[str, dict[str, Any]], name: str) -> None:
    for mine, alone in zip(results[name]["records"], results["alone"]["records"], strict=True):
        assert mine["gradient_norm"] == pytest.approx(alone["gradient_norm"], rel=1e-3)
        exact = ("step", "updates", "tokens", "model_tokens", "learning_rate", "skipped")
        assert [mine[key] for key in exact] == [alone[key] for key in exact]
        close = ("loss", "entropy", "kl_sampler", "kl_reference", "importance_weight", "logprob_difference")
        assert [mine[key] for key in close] == pytest.approx([alone[key] for key in close], rel=1e-4, abs=2e-5)
    for mine, alone in zip(results[name]["after"], results["alone"]["after"], strict=True):
        assert mine == pytest.approx(alone, abs=1e-3)


def test_the_policy_moves_and_its_figures_follow(results: dict[str, dict[str, Any]]) -> None:
    records = results["alone"]["records"]
    assert [record["learning_rate"] for record in records] == pytest.approx([5e-4, 1e-3])
    assert records[-1]["loss"] < records[0]["loss"]
    # The reference is the starting model: the policy leaves it with the first of the first step's two updates.
    assert 0 < records[0]["kl_reference"] < records[1]["kl_reference"]
    assert results["alone"]["before"] != results["alone"]["after"]
