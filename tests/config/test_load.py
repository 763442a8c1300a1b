"""Layers, resolved JSON, and errors that name the key and the mend."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm_core.config import (
    ConfigError,
    RunConfig,
    key_fields,
    load_config,
    merge,
    parse_config,
    profile_names,
    resolved_json,
)


@pytest.mark.parametrize("profile", profile_names())
def test_every_shipped_profile_loads_and_survives_json(profile: str) -> None:
    config = load_config(profile)
    assert config.profile == profile
    assert parse_config(json.loads(resolved_json(config))) == config


def test_layers_win_in_order(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[sft]\nlearning_rate = 0.5\nepochs = 7\n")
    config = load_config("smoke", file, ["sft.learning_rate=1e-4"])
    assert (config.sft.learning_rate, config.sft.epochs) == (1e-4, 7)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("sft.learnin_rate=1", "did you mean 'learning_rate'?"),
        ("agent.budget.turnz=3", "did you mean 'turns'?"),
        ("sft.lora.rnk=3", "did you mean 'rank'?"),
        ("sft.epochs=many", "'sft.epochs'"),
        ("sft.epochs", "section.key=value"),
        ("=3", "section.key=value"),
        ("sft.max_tokens=999999", "max_tokens must not exceed micro_batch_tokens"),
        ("engine.kind=gpu9000", "'engine.kind'"),
        ('team.endpoints=[{name="a", base_url="http://h/v1", model="m", concurency=3}]', "did you mean 'concurrency'?"),
        ('team.endpoints=[{name="a", base_url="h:80", model="m"}]', "is no http address"),
        ('team.endpoints=[{name="a", base_url="http://u:k@h/v1", model="m"}]', "must hold no credentials"),
    ],
)
def test_a_wrong_override_is_told_with_its_place(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=r".") as error:
        load_config("smoke", None, [override])
    assert told in str(error.value)


def test_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'smoke'"):
        load_config("smok")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[sft\n", b"a = 1"])
def test_unreadable_or_foreign_files_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError):
        load_config("smoke", file)
    with pytest.raises(ConfigError, match="cannot read"):
        load_config("smoke", tmp_path / "absent.toml")


_TABLES = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
_TABLE = st.dictionaries(st.sampled_from("abc"), _TABLES, max_size=3)


@given(_TABLE, _TABLE)
def test_merge_keeps_every_key_and_the_layer_wins(base: dict, layer: dict) -> None:
    merged = merge(base, layer)
    assert merged.keys() == base.keys() | layer.keys()
    assert merge(merged, layer) == merged
    assert all(merged[key] == value for key, value in layer.items() if not isinstance(value, dict))


def test_the_config_is_frozen() -> None:
    with pytest.raises(ValueError):
        load_config("smoke").sft.__setattr__("epochs", 3)
    assert isinstance(load_config("smoke"), RunConfig)


def test_models_must_be_served_by_an_endpoint_or_a_server() -> None:
    server = 'team.servers=[{model="own", source="/models/own"}]'
    endpoints = 'team.endpoints=[{name="a", base_url="http://h/v1", model="m"}]'
    assert load_config("smoke", None, [server, 'team.models=["own"]']).team.models == ("own",)
    assert load_config("smoke", None, [server, endpoints]).team.models == ("m", "own")
    assert load_config("smoke", None, [server, "teacher.kind=team"]).team.served
    with pytest.raises(ConfigError, match="no endpoint serves 'other'; served: own"):
        load_config("smoke", None, [server, 'team.judge_model="other"'])
    one = '{name="a", base_url="http://h/v1", model="m"}'
    with pytest.raises(ConfigError, match="different names"):
        load_config("smoke", None, [f"team.endpoints=[{one}, {one}]"])


def test_the_models_that_teach_are_in_the_key_and_where_they_are_served_is_not() -> None:
    def key(address: str, model: str) -> dict[str, object]:
        endpoints = f'team.endpoints=[{{name="a", base_url="{address}", model="{model}"}}]'
        return key_fields(load_config("smoke", None, [endpoints]).team)

    assert key("http://h/v1", "m") == key("http://g/v1", "m")
    assert key("http://h/v1", "m") != key("http://h/v1", "n")
