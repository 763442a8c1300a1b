"""What rollout workers of tests are made from; imported by name in their processes."""

import time
from functools import partial

from afm_core.config import AgentConfig, Budget, EngineConfig, RolloutConfig
from afm_core.data import Tag
from afm_core.engines import open_engine
from afm_core.rollout.ray_workers import RaySampler
from afm_core.tools.protocol import ToolResult, ToolStatus

AGENT = AgentConfig(budget=Budget(turn_tokens=8, total_tokens=60, turns=3))
ENGINE = EngineConfig(threads=1, slots=3, max_length=512)


class Echo:
    name = "echo"
    description = "echo"

    def call(self, argument):
        return ToolResult(ToolStatus.OK, f"about {argument}")


def make_tools():
    return {Tag.WEB_SEARCH: Echo()}


def slow_engine(directory, seconds):
    """The real engine, every step a little later, so that a test can kill it at work."""
    engine = open_engine(ENGINE, directory, "start", weights=False)
    step = engine.step

    def wait_and_step():
        time.sleep(seconds)
        return step()

    engine.step = wait_and_step
    return engine


def broken_engine():
    raise OSError("no such device")


def sampler_of(directory, seconds=0.0, **rollout):
    """A sampler with two workers unless told otherwise."""
    values = RolloutConfig(**{"workers": 2, **rollout})
    return RaySampler(partial(slow_engine, directory, seconds), make_tools, AGENT, ENGINE, values)
