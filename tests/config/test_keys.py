"""What enters a stage key: results yes, places and concurrency no."""

from pathlib import Path

import pytest

from afm_core.config import ConfigError, RunConfig, key_fields, load_config


def test_places_and_concurrency_are_not_in_the_key() -> None:
    plain = load_config("smoke")
    moved = load_config(
        "smoke",
        None,
        ["store.uri=/elsewhere", "execution.parallel_stages=4", "teacher.concurrency=1", "tracking.enabled=false"],
    )
    assert key_fields(plain) == key_fields(moved)


def test_everything_else_is() -> None:
    plain = key_fields(load_config("smoke"))
    changed = key_fields(load_config("smoke", None, ["sft.seed=7"]))
    assert plain["sft"] != changed["sft"]
    assert {name for name in plain if plain[name] != changed[name]} == {"sft"}


def test_every_section_is_a_key_section() -> None:
    assert set(key_fields(load_config("smoke"))) == set(RunConfig.model_fields)


def test_a_task_file_counts_by_its_content(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text("one")
    second.write_text("one")
    keys = [key_fields(load_config("smoke", None, [f"tasks.file={file}"]).tasks) for file in (first, second)]
    assert keys[0] == keys[1]
    second.write_text("two")
    assert key_fields(load_config("smoke", None, [f"tasks.file={second}"]).tasks) != keys[0]
    with pytest.raises(ConfigError, match="absent"):
        load_config("smoke", None, ["tasks.file=absent.jsonl"])
