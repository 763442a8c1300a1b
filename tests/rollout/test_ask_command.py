"""`afm ask` over a scripted engine."""

import json
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from afm_cli.ask import ask
from afm_core.config import AgentConfig, Budget
from afm_core.data import Tag
from afm_core.rollout.live import LivePolicy


@pytest.fixture
def run(monkeypatch, engine_of, tool_of, good_script):
    @contextmanager
    def scripted(config, model):
        agent = AgentConfig(budget=Budget(turn_tokens=400, total_tokens=4000))
        engine = engine_of({"why?": good_script, "lost?": ["no tags"]})
        with LivePolicy(engine, {Tag.WEB_SEARCH: tool_of({"query": "it \x1b[31mis 42"})}, agent) as policy:
            yield policy

    monkeypatch.setattr("afm_cli.policy.live_policy", scripted)
    return lambda *arguments: CliRunner().invoke(ask, ["--model", "m", "--profile", "smoke", *arguments])


def test_the_answer_goes_to_standard_output_and_the_trace_to_standard_error(run):
    result = run("why?")
    assert result.exit_code == 0
    assert result.stdout == "42\n"
    assert "<web_search>query</web_search><observation>it" in result.stderr
    assert "\x1b[31m" not in result.stderr


def test_json_is_one_document(run):
    document = json.loads(run("why?", "--json").stdout)
    assert (document["answer"], document["status"], document["usage"]["tool_calls"]) == ("42", "completed", 1)
    assert [segment["origin"] for segment in document["segments"]] == ["prompt", "sampled", "tool", "sampled"]


def test_no_answer_is_exit_code_1_with_the_status(run):
    result = run("lost?")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "parse_error" in result.stderr
