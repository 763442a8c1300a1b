"""The `sft` stage on a real Ray: from demonstrations to a model, killed, stopped, refused."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from training_samples import FakeContext, run_config, write_corpus, write_demonstrations

from afm_core.config import ConfigError
from afm_core.store import StageInterrupted
from afm_core.training import TrainingWorkerDied
from afm_core.training.stages import base_model, sft

pytestmark = pytest.mark.integration

SFT = {"epochs": 3, "learning_rate": 1e-3}
"""12 steps of 2 demonstrations, a checkpoint every second step."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    import ray

    context = ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False)
    yield context.address_info["address"]
    ray.shutdown()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model and demonstrations."""
    root = tmp_path_factory.mktemp("world")
    for name in ("corpus", "demonstrations"):
        (root / name).mkdir()
    base_model(FakeContext(root / "base", "base", run_config(), {"corpus": write_corpus(root / "corpus")}))
    write_demonstrations(root / "demonstrations")
    return root


def context(world: Path, root: Path, cls: type[FakeContext] = FakeContext, **sft_fields: Any) -> FakeContext:
    inputs = {"base": world / "base" / "output", "demonstrations": world / "demonstrations"}
    return cls(root, "sft", run_config(**{**SFT, **sft_fields}), inputs)


@pytest.fixture(scope="module")
def trained(world: Path, cluster: str, tmp_path_factory: pytest.TempPathFactory) -> FakeContext:
    done = context(world, tmp_path_factory.mktemp("trained"))
    done.result = sft(done)  # type: ignore[attr-defined]
    return done


def digested(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in output.iterdir() if path.is_file()}


def test_the_stage_trains_and_writes_a_model(trained: FakeContext, world: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    metrics = trained.result.metrics  # type: ignore[attr-defined]
    assert metrics["steps"] == 12
    assert metrics["final_loss"] < 0.8 * metrics["first_loss"]
    curve = json.loads((trained.output / "losses.json").read_text())
    assert [point["step"] for point in curve] == list(range(1, 13))
    assert set(curve[0]) == {"step", "loss", "learning_rate", "supervised_tokens"}
    AutoModelForCausalLM.from_pretrained(trained.output)
    tokenizer = (world / "base" / "output" / "tokenizer.json").read_bytes()
    assert (trained.output / "tokenizer.json").read_bytes() == tokenizer
    assert AutoTokenizer.from_pretrained(trained.output).chat_template
    assert json.loads((trained.output / "afm.json").read_text())["demonstrations_digest"] == "demonstrations"


def test_metrics_progress_and_checkpoints(trained: FakeContext) -> None:
    assert [step for step, _ in trained.metrics] == list(range(1, 13))
    assert "train/loss" in trained.metrics[0][1]
    assert "12/12" in trained.messages[-1]
    assert len((trained.output / "sidecar" / "metrics.jsonl").read_text().splitlines()) == 12
    assert list(trained.sealed("checkpoint/")) == ["checkpoint/step-000010"]


def test_a_killed_stage_continues_and_ends_with_the_same_bytes(
    trained: FakeContext, world: Path, cluster: str, tmp_path: Path
) -> None:
    place = tmp_path / "killed"
    place.mkdir()
    for name in ("base", "demonstrations"):
        (place / name).symlink_to(world / name)
    script = [sys.executable, str(Path(__file__).with_name("stage_process.py")), str(place)]
    environment = {**os.environ, "RAY_ADDRESS": cluster}
    killed = subprocess.run(
        [*script, "kill"], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    assert [path.name for path in (place / "sft" / "seals" / "checkpoint").iterdir()] == ["step-000002"]
    subprocess.run([*script, "run"], env=environment, capture_output=True, timeout=300, check=True)
    assert digested(place / "sft" / "output") == digested(trained.output)


def test_sigterm_seals_a_checkpoint_and_the_next_attempt_is_the_same_run(
    trained: FakeContext, world: Path, cluster: str, tmp_path: Path
) -> None:
    class Stopping(FakeContext):
        def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
            self.stopping.set()

    with pytest.raises(StageInterrupted, match="stopped after step"):
        sft(context(world, tmp_path, Stopping, checkpoint_every=1000))
    resumed = context(world, tmp_path, checkpoint_every=1000)
    assert len(resumed.sealed("checkpoint/")) == 1
    sft(resumed)
    assert (resumed.output / "losses.json").read_bytes() == (trained.output / "losses.json").read_bytes()
    model = "model.safetensors"
    assert (resumed.output / model).read_bytes() == (trained.output / model).read_bytes()


def test_a_killed_worker_is_named_with_its_memory_and_nothing_hangs(world: Path, cluster: str, tmp_path: Path) -> None:
    class KillsWorker(FakeContext):
        def seal(self, name: str, source: Path) -> None:
            super().seal(name, source)
            events = (self.scratch / "training" / "events.jsonl").read_text().splitlines()
            os.kill(json.loads(events[0])["pid"], signal.SIGKILL)

    with pytest.raises(TrainingWorkerDied, match=r"worker 0 died: .*GiB in use"):
        sft(context(world, tmp_path, KillsWorker, epochs=300))


def test_a_cluster_that_is_too_small_is_the_users_mistake(world: Path, cluster: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"3 workers x 1 CPU, Ray has 2"):
        sft(context(world, tmp_path, world_size=3))


def test_a_full_disk_is_refused_before_anything_starts(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1_000_000})())
    with pytest.raises(ConfigError, match=r"training needs .* available are 1\.00 MB"):
        sft(context(world, tmp_path))


def test_trajectories_that_are_all_too_long_are_refused(world: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sft\.max_tokens = 16"):
        sft(context(world, tmp_path, max_tokens=16))
