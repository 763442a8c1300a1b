"""`afm tools call`: the documented JSON, exit codes, no dispatch of malformed calls."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from afm_cli.tools import tools
from afm_core.config import ConfigError, CorpusConfig
from afm_core.taskcraft import corpus_documents

TITLE = corpus_documents(CorpusConfig(source="micro"))[0].title


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFM_HOME", str(tmp_path))


def _call(name: str, arguments: str) -> Result:
    return CliRunner().invoke(tools, ["call", name, "--args", arguments, "--profile", "smoke"])


@pytest.mark.parametrize(
    ("name", "key"),
    [("search_local", "query"), ("web_search", "query"), ("read_local", "title"), ("crawl_page", "title")],
)
def test_tools_and_tags_can_be_called(name: str, key: str) -> None:
    result = _call(name, json.dumps({key: TITLE}))
    document = json.loads(result.stdout)
    assert (result.exit_code, document["status"]) == (0, "ok")
    assert set(document) == {"status", "text", "truncated", "seconds", "cached"}
    assert TITLE in document["text"]


def test_malformed_arguments_are_answered_and_exit_with_2() -> None:
    result = _call("search_local", '{"query":')
    assert (result.exit_code, json.loads(result.stdout)["status"]) == (2, "bad_arguments")


def test_an_unknown_tool_names_the_nearest() -> None:
    error = _call("serch_local", '""').exception
    assert isinstance(error, ConfigError)
    assert "no tool 'serch_local'; did you mean 'search_local'?" in str(error)
    assert "agent.tools" not in str(error), "the user named no configuration key"


def test_the_example_of_the_help_finds_something() -> None:
    shown = CliRunner().invoke(tools, ["call", "--help"]).output
    assert f'read_local --args \'{{"title": "{TITLE}"}}\' --profile smoke' in shown
