"""`afm models` against a cache of its own."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from training_samples import documents

from afm_cli.models import models
from afm_core.config import ConfigError
from afm_core.training.tiny import make_tiny


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AFM_MODEL_CACHE", str(tmp_path / "cache"))
    make_tiny(documents(), tmp_path / "tiny", seed=0)
    return tmp_path / "tiny"


def call(*arguments: str) -> str:
    result = CliRunner().invoke(models, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_fetch_then_list(tiny: Path) -> None:
    assert json.loads(call("ls", "--json"))["models"] == []
    fetched = json.loads(call("fetch", f"file://{tiny}", "--json"))
    assert fetched["provenance"]["name"] == "tiny"
    listed = json.loads(call("ls", "--json"))["models"]
    assert [model["path"] for model in listed] == [fetched["path"]]
    assert "random" in call("ls")


def test_a_local_directory_is_printed_as_it_is(tiny: Path) -> None:
    assert call("fetch", str(tiny)).strip() == str(tiny)


def test_an_unknown_source_is_the_users_mistake(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="no model"):
        CliRunner().invoke(models, ["fetch", "nonsense"], catch_exceptions=False)


@pytest.mark.parametrize("arguments", [["--help"], ["fetch", "--help"], ["ls", "--help"]])
def test_help_has_an_example(arguments: list[str]) -> None:
    assert "Example:" in call(*arguments)
