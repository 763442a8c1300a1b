"""The pool over the real engine: a random tiny model, real tokens, tools between turns."""

import sys
from pathlib import Path

import pytest

from afm_core.config import AgentConfig, Budget, EngineConfig
from afm_core.data import AgentTask, Origin, Status, Tag
from afm_core.engines import open_engine
from afm_core.rollout import run_episodes
from afm_core.tools.protocol import ToolResult, ToolStatus

sys.path.append(str(Path(__file__).parents[1] / "engines"))

AGENT = AgentConfig(budget=Budget(turn_tokens=12, total_tokens=200, turns=4))


class Echo:
    name = "echo"
    description = "echo"

    def call(self, argument):
        return ToolResult(ToolStatus.OK, f"about {argument}")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    from tests_engines_model import make_model

    return make_model(tmp_path_factory.mktemp("model"), seed=3, max_position_embeddings=512)


def rollout(directory, tasks, slots, call_every_turn=False):
    engine = open_engine(EngineConfig(threads=1, slots=slots, max_length=512), directory, "v1")
    if call_every_turn:
        _make_turns_end_in_calls(engine)
    return run_episodes(tasks, engine, {Tag.WEB_SEARCH: Echo()}, AGENT, temperature=1.0, seed=5)


def _make_turns_end_in_calls(engine):
    """A random model never calls a tool: give the turns it ends a call's text, keeping its ids."""
    from dataclasses import replace

    step = engine.step
    text = "<think>t</think><web_search>x</web_search>"
    from afm_core.engines import FinishReason

    engine.step = lambda: [replace(one, text=text, finish=FinishReason.STOP, stop="</web_search>") for one in step()]


def test_equal_rollouts_are_bit_identical_and_account_for_every_token(directory):
    tasks = [AgentTask.create(f"question {n}?", ("x",)) for n in range(7)]
    first = rollout(directory, tasks, slots=3)
    assert first == rollout(directory, tasks, slots=3)
    for trajectory in first:
        assert trajectory.status in (Status.PARSE_ERROR, Status.TRUNCATED)
        assert trajectory.reward == 0.0
        sampled = [segment for segment in trajectory.segments if segment.origin is Origin.SAMPLED]
        assert sum(len(segment.token_ids) for segment in sampled) == trajectory.usage.sampled_tokens
        assert all(len(segment.token_ids) == len(segment.logprobs) for segment in sampled)


def test_many_turns_with_tools_give_the_logprobs_of_one_plain_pass(directory):
    """What the trainer will compute over the whole row is what the engine sampled with, turn by turn."""
    import torch
    from transformers import AutoModelForCausalLM

    tasks = [AgentTask.create(f"question {n}?", ("x",)) for n in range(5)]
    model = AutoModelForCausalLM.from_pretrained(directory)
    for trajectory in rollout(directory, tasks, slots=2, call_every_turn=True):
        assert trajectory.usage.turns == 4
        ids = [token for segment in trajectory.segments for token in segment.token_ids]
        with torch.inference_mode():
            logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        at = 0
        for segment in trajectory.segments:
            for offset, token in enumerate(segment.token_ids):
                if segment.origin is Origin.SAMPLED:
                    expected = float(logprobs[at + offset - 1, token])
                    assert segment.logprobs[offset] == pytest.approx(expected, abs=1e-4)
            at += len(segment.token_ids)
