"""Weights straight from tensors, their digest, and engines that rest between loads."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests_engines_model import make_model

from afm_core.config import ConfigError, EngineConfig
from afm_core.engines import GenerationRequest, open_engine
from afm_core.engines.weights import directory_digest, weights_digest

CONFIG = EngineConfig(threads=1, slots=3, max_length=128)
PROMPT = tuple(range(20, 60))


def state_of(directory):
    return load_file(directory / "model.safetensors")


def generations(engine, count=5):
    for number in range(count):
        engine.submit(
            GenerationRequest(
                f"r{number}", (*PROMPT, 70 + number), 8, temperature=1.0, seed=number, session=f"s{number}"
            )
        )
    done = []
    while engine.pending():
        done += engine.step()
    return done


def test_the_digest_is_of_names_formats_shapes_and_bytes():
    state = {"b": torch.arange(6, dtype=torch.float32).view(2, 3), "a": torch.ones(())}
    digest = weights_digest(state)
    assert digest == weights_digest({name: state[name].clone() for name in sorted(state)})
    changed = [
        {**state, "b": state["b"].view(3, 2)},
        {**state, "b": state["b"].to(torch.float64)},
        {**state, "b": torch.nextafter(state["b"], torch.tensor(9.0))},
        {"b": state["b"], "c": state["a"]},
        {"b": state["b"]},
    ]
    assert len({digest, *(weights_digest(one) for one in changed)}) == 6
    assert weights_digest({"a": torch.arange(8).view(2, 4).t()}) == weights_digest(
        {"a": torch.arange(8).view(2, 4).t().contiguous()}
    )


def test_bf16_and_a_tied_head_do_not_disturb_the_digest(tiny_directory, tmp_path):
    state = state_of(tiny_directory)
    assert "lm_head.weight" not in state
    assert weights_digest({**state, "lm_head.weight": state["model.embed_tokens.weight"].clone()}) == directory_digest(
        tiny_directory
    )
    half = {name: tensor.to(torch.bfloat16) for name, tensor in state.items()}
    save_file(half, tmp_path / "model.safetensors")
    assert directory_digest(tmp_path) == weights_digest(half) != directory_digest(tiny_directory)
    with pytest.raises(FileNotFoundError, match="no safetensors"):
        directory_digest(tmp_path / "nothing")


@pytest.mark.parametrize("tied", [True, False])
def test_weights_from_tensors_sample_like_weights_from_a_directory(tmp_path, tied):
    directory = make_model(tmp_path, seed=4, tie_word_embeddings=tied, attention_bias=True)
    expected = generations(open_engine(CONFIG, directory, "v1"))
    engine = open_engine(CONFIG, directory, "v0", weights=False)
    state = state_of(directory)
    engine.load_state(state, "v1")
    for tensor in state.values():
        tensor.mul_(2.0)  # the trainer goes on
    assert generations(engine) == expected
    assert engine.policy_version == "v1"
    assert engine.weights_digest == directory_digest(directory)


@pytest.mark.parametrize("tied", [True, False])
def test_lent_weights_sample_the_same_and_are_not_copied(tmp_path, tied):
    directory = make_model(tmp_path, seed=4, tie_word_embeddings=tied, attention_bias=True)
    engine = open_engine(CONFIG, directory, "v0", weights=False)
    state = state_of(directory)
    before = {name: tensor.clone() for name, tensor in state.items()}
    engine.load_state(state, "v1", lent=True)
    assert generations(engine) == generations(open_engine(CONFIG, directory, "v1"))
    assert engine.weights_digest == directory_digest(directory)
    assert all(torch.equal(state[name], tensor) for name, tensor in before.items())
    state["model.embed_tokens.weight"].zero_()
    assert generations(engine) != generations(open_engine(CONFIG, directory, "v1"))  # its embedding is the lender's


def test_an_engine_without_weights_knows_its_model_but_serves_nothing(tiny_directory):
    whole, empty = open_engine(CONFIG, tiny_directory, "v"), open_engine(CONFIG, tiny_directory, "v", weights=False)
    assert (empty.max_length, empty.slots, len(empty.tokenizer)) == (
        whole.max_length,
        whole.slots,
        len(whole.tokenizer),
    )
    with pytest.raises(ValueError, match="no weights"):
        empty.submit(GenerationRequest("r", (1,), 1))
    with pytest.raises(ConfigError, match="no Hugging Face model"):
        open_engine(CONFIG, tiny_directory / "nothing", "v", weights=False)


def test_skyrl_2246_nothing_cached_with_old_weights_survives_a_load(tiny_directory, other_directory):
    """The same prompts before and after, so every key and value of the old weights would be used again."""
    expected = generations(open_engine(CONFIG, other_directory, "v"))
    for load in (
        lambda engine: engine.load_state(state_of(other_directory), "v"),
        lambda engine: engine.load_weights(other_directory, "v"),
    ):
        engine = open_engine(CONFIG, tiny_directory, "v0")
        assert generations(engine) != expected
        load(engine)
        assert generations(engine) == expected


def test_trl_5312_an_engine_that_rested_wakes_with_what_is_loaded_then(tiny_directory, other_directory):
    engine = open_engine(CONFIG, tiny_directory, "v1")
    engine.submit(GenerationRequest("r", PROMPT, 4))
    with pytest.raises(ValueError, match="1 requests are pending"):
        engine.rest()
    while engine.pending():
        engine.step()
    engine.rest()
    with pytest.raises(ValueError, match="no weights"):
        engine.submit(GenerationRequest("again", PROMPT, 4))
    engine.load_state(state_of(other_directory), "v2")
    assert generations(engine) == generations(open_engine(CONFIG, other_directory, "v2"))


def test_weights_of_another_model_are_refused_and_the_old_ones_stay(tiny_directory):
    engine = open_engine(CONFIG, tiny_directory, "v1")
    state = state_of(tiny_directory)
    wrong = {
        "missing model.norm.weight": {name: value for name, value in state.items() if name != "model.norm.weight"},
        "unknown module.x": {**state, "module.x": torch.ones(1)},
        r"model.norm.weight has shape \(3,\)": {**state, "model.norm.weight": torch.ones(3)},
        "lm_head.weight differs": {**state, "lm_head.weight": state["model.embed_tokens.weight"] + 1},
    }
    for message, one in wrong.items():
        with pytest.raises(ValueError, match=message):
            engine.load_state(one, "v2")
    assert engine.policy_version == "v1"
    assert generations(engine) == generations(open_engine(CONFIG, tiny_directory, "v1"))
