"""The training worker on DeepSpeed in real processes: world sizes, ZeRO stages, formats, exact resumption."""

from pathlib import Path
from typing import Any

import pytest
import torch
from training_processes import losses, run_jobs
from training_samples import documents, random_rows

from afm_core.config import SftConfig
from afm_core.training.channel import Channel
from afm_core.training.rows import write_rows
from afm_core.training.stages import parameter_count
from afm_core.training.tiny import make_tiny

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("base")
    make_tiny(documents(), directory, seed=0)
    return directory


def job(root: Path, base: Path, name: str, resume: Path | None = None, **sft: Any) -> dict[str, Any]:
    """A job of 6 steps over 12 rows in its own directory."""
    channel = Channel(root / name)
    channel.create()
    write_rows(random_rows(12, vocabulary=250, longest=60), channel.rows)
    values = {"batch_trajectories": 2, "threads": 1, "learning_rate": 1e-3, "micro_batch_tokens": 64, "max_tokens": 64}
    config = SftConfig.model_validate({**values, "checkpoint_every": 1000, **sft})
    return {
        "config": config.model_dump(mode="json"),
        "base": str(base),
        "directory": str(channel.directory),
        "resume": str(resume) if resume else None,
        "provenance": {"method": "test"},
    }


def norms(root: Path, name: str) -> list[float]:
    events = list(Channel(root / name).reader().new())
    return [event["record"]["gradient_norm"] for event in events if event["kind"] == "step"]


def weights(root: Path, name: str) -> bytes:
    return (Channel(root / name).model / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    """World size 1: plain, with other micro-batches, with LoRA, in bf16; interrupted and resumed."""
    root = tmp_path_factory.mktemp("alone")
    jobs = [
        job(root, base, "plain"),
        job(root, base, "accumulated", micro_batch_tokens=192),
        job(root, base, "lora", lora={"rank": 4, "dropout": 0.1}),
        job(root, base, "bf16", dtype="bf16"),
        job(root, base, "decayed", weight_decay=0.1),
        job(root, base, "first", lora={"rank": 4, "dropout": 0.1}, checkpoint_every=2),
        job(root, base, "first-full"),
    ]
    Channel(root / "first").ask_to_stop()
    Channel(root / "first-full").ask_to_stop()
    lora_checkpoint = root / "first" / "checkpoints" / "step-000001"
    jobs.append(job(root, base, "resumed-lora", lora_checkpoint, lora={"rank": 4, "dropout": 0.1}))
    jobs.append(job(root, base, "resumed", root / "first-full" / "checkpoints" / "step-000001"))
    run_jobs(root, jobs, 1)
    return root


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    """World size 2, every ZeRO stage; ZeRO-3 also interrupted and resumed, and with LoRA."""
    root = tmp_path_factory.mktemp("pair")
    jobs = [job(root, base, f"zero{stage}", zero_stage=stage, world_size=2) for stage in range(4)]
    jobs.append(job(root, base, "zero3-lora", zero_stage=3, world_size=2, lora={"rank": 4}))
    jobs.append(job(root, base, "zero3-first", zero_stage=3, world_size=2))
    Channel(root / "zero3-first").ask_to_stop()
    checkpoint = root / "zero3-first" / "checkpoints" / "step-000001"
    jobs.append(job(root, base, "zero3-resumed", checkpoint, zero_stage=3, world_size=2))
    run_jobs(root, jobs, 2)
    return root


def test_accumulation_does_not_change_the_loss(alone: Path) -> None:
    assert losses(alone, "plain") == pytest.approx(losses(alone, "accumulated"), abs=1e-5)
    assert norms(alone, "plain") == pytest.approx(norms(alone, "accumulated"), rel=1e-4)


@pytest.mark.parametrize("stage", range(4))
def test_world_size_and_zero_stage_do_not_change_the_loss(alone: Path, pair: Path, stage: int) -> None:
    assert losses(pair, f"zero{stage}") == pytest.approx(losses(alone, "plain"), abs=1e-5)
    assert norms(pair, f"zero{stage}") == pytest.approx(norms(alone, "plain"), rel=1e-3)


def test_verl_7953_a_resumed_run_is_the_same_run_to_the_last_digit(alone: Path) -> None:
    assert losses(alone, "resumed") == losses(alone, "plain")
    assert weights(alone, "resumed") == weights(alone, "plain")


def test_dropout_is_the_same_after_a_resumption(alone: Path) -> None:
    assert losses(alone, "resumed-lora") == losses(alone, "lora")
    assert weights(alone, "resumed-lora") == weights(alone, "lora")


def test_zero3_resumes_exactly(pair: Path) -> None:
    assert losses(pair, "zero3-resumed") == losses(pair, "zero3")
    assert weights(pair, "zero3-resumed") == weights(pair, "zero3")


def test_deepspeed_3841_zero3_saves_every_parameter(base: Path, alone: Path, pair: Path) -> None:
    from transformers import AutoModelForCausalLM

    for name in ("zero3", "zero3-lora"):
        directory = Channel(pair / name).model
        assert parameter_count(directory) == parameter_count(base)
        size = (directory / "model.safetensors").stat().st_size
        assert size == (base / "model.safetensors").stat().st_size
    mine = AutoModelForCausalLM.from_pretrained(Channel(pair / "zero3").model)
    theirs = AutoModelForCausalLM.from_pretrained(Channel(alone / "plain").model)
    for left, right in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-4)


def test_lora_changes_only_its_targets_and_exports_plain_weights(base: Path, alone: Path) -> None:
    from safetensors.torch import load_file

    before = load_file(base / "model.safetensors")
    after = load_file(Channel(alone / "lora").model / "model.safetensors")
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if "_proj" in name}


def test_bf16_trains_and_exports_bf16(alone: Path) -> None:
    from transformers import AutoModelForCausalLM

    assert losses(alone, "bf16") == pytest.approx(losses(alone, "plain"), rel=0.05)
    assert AutoModelForCausalLM.from_pretrained(Channel(alone / "bf16").model).dtype is torch.bfloat16


def test_weight_decay_spares_vectors(alone: Path) -> None:
    from safetensors.torch import load_file

    decayed = load_file(Channel(alone / "decayed").model / "model.safetensors")
    plain = load_file(Channel(alone / "plain").model / "model.safetensors")
    name = "model.embed_tokens.weight"
    assert decayed[name].norm() < plain[name].norm()
    assert losses(alone, "decayed")[0] == losses(alone, "plain")[0]
