"""The proof after every weight load: what it lets pass, and each way of keeping old weights that it catches."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from afm_core.config import AgentConfig, EngineConfig
from afm_core.engines import FinishReason, Generation, open_engine
from afm_core.engines.rows import RowTable
from afm_core.engines.slots import SlotCache
from afm_core.engines.weights import directory_digest
from afm_core.rollout.local import LocalSampler
from afm_core.training.rl.sync import PROBE_PROMPT_TOKENS, SyncError, TrainerWeights, probe_prompt, synchronise

sys.path.append(str(Path(__file__).parents[2] / "engines"))

PROBE = tuple(range(20, 60))
TOLERANCE = 1e-3


class Trainer:
    """A policy in training: its weights, and its own log-probabilities."""

    def __init__(self, directory, root):
        from transformers import AutoModelForCausalLM

        self.base, self.root = directory, root
        self.model = AutoModelForCausalLM.from_pretrained(directory)

    def update(self, size=0.05):
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter += size * parameter.std() * torch.randn(parameter.shape, generator=generator)

    def weights(self, dtype="float32"):
        return TrainerWeights(dict(self.model.named_parameters()), self.base, self.root, dtype)

    @torch.no_grad()
    def score(self, ids, prompt_length):
        logprobs = self.model(torch.tensor([list(ids)])).logits[0].log_softmax(-1)
        return [float(logprobs[at - 1, ids[at]]) for at in range(prompt_length, len(ids))]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    from tests_engines_model import make_model

    return make_model(tmp_path_factory.mktemp("model"), seed=5)


@pytest.fixture
def trainer(directory, tmp_path):
    return Trainer(directory, tmp_path / "sync")


@pytest.fixture
def engine(directory):
    return open_engine(EngineConfig(threads=1, slots=2, max_length=128), directory, "start", weights=False)


@pytest.fixture
def sampler(engine):
    return LocalSampler(engine, {}, AgentConfig())


def sync(sampler, trainer, previous=None, tolerance=TOLERANCE):
    return synchronise(sampler, trainer.weights(), previous, trainer.score, PROBE, tolerance)


def test_every_update_reaches_the_sampler_and_is_proved(sampler, trainer):
    first = sync(sampler, trainer)
    trainer.update()
    second = sync(sampler, trainer, first.version)
    assert first.version != second.version
    assert max(first.probe_difference, second.probe_difference) < 1e-4
    assert sync(sampler, trainer).version == second.version  # nothing was updated, nothing is claimed


def test_an_engine_that_reads_a_directory_is_proved_the_same_way(sampler, engine, trainer, monkeypatch):
    monkeypatch.setattr(type(engine), "load_state", None)
    first = sync(sampler, trainer)
    trainer.update()
    second = sync(sampler, trainer, first.version)
    assert second.probe_difference < 1e-4
    assert [path.name for path in trainer.root.iterdir()] == [second.version]  # the older directory is gone


def test_verl_7495_an_update_that_changed_no_exported_weight_is_an_error(sampler, trainer):
    """LoRA adapters that are trained but not merged into what is exported look exactly like this."""
    version = sync(sampler, trainer).version
    with pytest.raises(SyncError, match="left the weights as they were"):
        sync(sampler, trainer, version)


def test_verl_7495_an_update_that_does_not_reach_the_engine_is_an_error(sampler, engine, trainer, monkeypatch):
    version = sync(sampler, trainer).version
    trainer.update()
    monkeypatch.setattr(engine, "load_state", lambda state, policy_version, lent: None)
    with pytest.raises(SyncError, match=f"loaded weights {version[:12]}, the trainer has"):
        sync(sampler, trainer, version)


def test_trl_5312_an_engine_that_wakes_with_old_weights_is_an_error(sampler, engine, trainer, monkeypatch):
    """It claims the new version, digest and all; only its log-probabilities tell."""
    version = sync(sampler, trainer).version
    old = {name: tensor.detach().clone() for name, tensor in trainer.model.named_parameters()}
    sampler.rest()
    trainer.update()
    load = engine.load_state

    def wake(state, policy_version, lent):
        load(old, policy_version)
        engine.weights_digest = policy_version

    monkeypatch.setattr(engine, "load_state", wake)
    with pytest.raises(
        SyncError, match=r"engine 0 does not sample from the trainer's weights .* differ by .*old weights"
    ):
        sync(sampler, trainer, version)


@pytest.mark.parametrize("reset", [True, False])
def test_nemo_rl_4018_a_prefix_cache_that_is_not_emptied_is_an_error(sampler, engine, trainer, monkeypatch, reset):
    """The weights are new, the keys and values of the probe's prompt are the old ones'."""
    version = sync(sampler, trainer).version
    trainer.update()
    if not reset:
        rows, cache = engine._rows, engine._cache
        assert any(row.ids[: len(PROBE) - 1] == list(PROBE[:-1]) for row in rows.rows)
        monkeypatch.setattr("afm_core.engines.transformers_engine.RowTable", lambda slots: rows)
        monkeypatch.setattr("afm_core.engines.transformers_engine.SlotCache", lambda *shape: cache)
        with pytest.raises(SyncError, match="a cache of them"):
            sync(sampler, trainer, version)
        return
    assert isinstance(engine._rows, RowTable)
    assert isinstance(engine._cache, SlotCache)
    assert sync(sampler, trainer, version).probe_difference < 1e-4


def scripted(generations, version="v"):
    weights = SimpleNamespace(version=version)
    return SimpleNamespace(load=lambda given: given.version, probe=lambda ids, tokens: generations), weights


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        (Generation("p", (), (), "", FinishReason.ERROR, error="out of memory"), "engine 1 could not .*out of memory"),
        (Generation("p", (5,), (float("nan"),), "", FinishReason.LENGTH), "engine 1 .* differ by nan"),
        (Generation("p", (5, 6), (-1.0, -1.2), "", FinishReason.LENGTH), "engine 1 .* differ by 0.2"),
    ],
)
def test_one_bad_engine_among_several_is_named(generation, message):
    good = Generation("p", (5, 6), (-1.0, -1.0), "", FinishReason.LENGTH)
    sampler, weights = scripted([good, generation])
    with pytest.raises(SyncError, match=message):
        synchronise(sampler, weights, None, lambda ids, start: [-1.0] * (len(ids) - start), (1, 2), 0.1)


def test_a_trainer_that_scores_another_number_of_tokens_is_an_error():
    sampler, weights = scripted([Generation("p", (5,), (-1.0,), "", FinishReason.LENGTH)])
    with pytest.raises(SyncError, match="1 log-probabilities, the trainer 3"):
        synchronise(sampler, weights, None, lambda ids, start: [-1.0] * 3, (1, 2), 0.1)


def test_no_engine_is_no_proof():
    sampler, weights = scripted([])
    with pytest.raises(SyncError, match="no engine"):
        synchronise(sampler, weights, None, lambda ids, start: [], (1, 2), 0.1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_directory_holds_the_version_that_was_announced(trainer, dtype):
    weights = trainer.weights(dtype)
    path = weights.directory()
    assert directory_digest(path) == weights.version
    assert load_file(path / "model.safetensors")["model.norm.weight"].dtype == getattr(torch, dtype)
    assert weights.directory() == path
    weights.remove()
    assert not path.exists()


def test_a_directory_is_never_written_from_weights_that_have_moved_on(trainer):
    weights = trainer.weights()
    version = weights.version
    trainer.update()
    with pytest.raises(ValueError, match=f"have changed since they were version {version[:12]}"):
        weights.directory()
    assert list(trainer.root.iterdir()) == []


@given(st.lists(st.lists(st.integers(0, 9), max_size=90), min_size=1, max_size=5))
def test_a_probe_prompt_is_long_enough_to_be_cached_and_made_of_whole_prompts(prompts):
    whole = [ids for ids in prompts if ids]
    if not whole:
        with pytest.raises(ValueError, match="needs a prompt"):
            probe_prompt(prompts)
        return
    probe = probe_prompt(prompts)
    assert PROBE_PROMPT_TOKENS <= len(probe) < PROBE_PROMPT_TOKENS + max(map(len, whole))
    assert probe == ([one for ids in whole for one in ids] * PROBE_PROMPT_TOKENS)[: len(probe)]
