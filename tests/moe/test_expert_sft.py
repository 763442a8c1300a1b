"""Expert-only fine-tuning in the training worker on DeepSpeed: frozen bits, ZeRO stages, resumption, the export."""

from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import write_model
from safetensors.torch import load_file
from training_processes import finished, losses, run_jobs

from afm_core.config import SftConfig
from afm_core.moe.selection import ExpertSelection
from afm_core.training.channel import Channel
from afm_core.training.rows import Row, write_rows

pytestmark = pytest.mark.integration

SELECTION = ExpertSelection(
    domain="code", score="token", experts={"0": [1, 4], "2": [0]}, num_experts=6, trainable_share=0.1
)


def job(root: Path, base: Path, name: str, resume: Path | None = None, **sft: Any) -> dict[str, Any]:
    """A job of 6 steps over 12 rows in its own directory."""
    channel = Channel(root / name)
    channel.create()
    torch.manual_seed(0)
    rows = [
        Row(str(number), tuple(torch.randint(3, 250, (20 + number,)).tolist()), (0, *(1,) * (19 + number)))
        for number in range(12)
    ]
    write_rows(rows, channel.rows)
    values = {"batch_trajectories": 2, "threads": 1, "learning_rate": 1e-2, "micro_batch_tokens": 64, "max_tokens": 64}
    experts = {"diagnosis": "d", "domain": "code"}
    common = {"weight_decay": 0.1, "checkpoint_every": 1000, "experts": experts}
    config = SftConfig.model_validate({**values, **common, **sft})
    return {
        "config": config.model_dump(mode="json"),
        "base": str(base),
        "directory": str(channel.directory),
        "resume": str(resume) if resume else None,
        "provenance": {"method": "test"},
        "experts": SELECTION.model_dump() if config.experts else None,
    }


def weights(root: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(Channel(root / name).model / "model.safetensors")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    root = tmp_path_factory.mktemp("runs")
    jobs = [
        job(root, base, "plain"),
        job(root, base, "first"),
        job(root, base, "router", experts={"diagnosis": "d", "domain": "code", "router": True}),
        job(root, base, "full", experts=None),
    ]
    Channel(root / "first").ask_to_stop()
    jobs.append(job(root, base, "resumed", root / "first" / "checkpoints" / "step-000001"))
    run_jobs(root, jobs, 1)
    run_jobs(root, [job(root, base, f"zero{stage}", zero_stage=stage, world_size=2) for stage in (1, 2)], 2)
    return root


def test_only_the_selected_experts_move(runs: Path, base: Path) -> None:
    before, after = load_file(base / "model.safetensors"), weights(runs, "plain")
    assert after.keys() == before.keys(), "published names: one tensor an expert"
    moved = {name.rsplit(".", 2)[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == {f"model.layers.{layer}.mlp.experts.{expert}" for layer, expert in ((0, 1), (0, 4), (2, 0))}
    assert losses(runs, "plain")[-1] < losses(runs, "plain")[0]


def test_a_resumed_run_is_the_same_run(runs: Path) -> None:
    assert losses(runs, "resumed") == losses(runs, "plain")
    for name, tensor in weights(runs, "plain").items():
        assert torch.equal(tensor, weights(runs, "resumed")[name]), name


@pytest.mark.parametrize("stage", [1, 2])
def test_zero_stages_on_two_workers_give_the_same_losses(runs: Path, stage: int) -> None:
    assert losses(runs, f"zero{stage}") == pytest.approx(losses(runs, "plain"), abs=1e-4)


def test_routers_move_if_wished_and_the_drift_is_told(runs: Path, base: Path) -> None:
    before, after = load_file(base / "model.safetensors"), weights(runs, "router")
    gate = "model.layers.2.mlp.gate.weight"
    assert not torch.equal(before[gate], after[gate])
    drift = finished(runs, "plain")["routing_overlap"]
    assert len(drift) == 2
    assert drift[0] == 1.0, "nothing below the first router is trained"
    assert finished(runs, "full")["routing_overlap"] == [], "nothing is selected"


@pytest.mark.parametrize("name", ["plain", "full"])
def test_the_export_reloads_with_the_trained_weights(runs: Path, name: str) -> None:
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(Channel(runs / name).model, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    saved = weights(runs, name)["model.layers.0.mlp.experts.1.down_proj.weight"]
    assert torch.equal(model.state_dict()["model.layers.0.mlp.experts.down_proj"][1], saved)
