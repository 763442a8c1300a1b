"""The team's rollouts against servers that fail: how close to the ideal time, and is every attempt accounted for?

    python benchmarks/teacher_endpoints.py --rollouts 96 --concurrency 8

A scripted OpenAI-compatible server (a process of its own) answers after `--seconds`, and meets a share of its requests
with 429 and a Retry-After, 500, a reply five times as slow, one that breaks off, one that is no JSON, one that says
nothing of use, one cut at its length. Ideal is the sum of its service times over the concurrency, and the rests that it
asked for. Two legs: single requests, and whole rollouts of the team, twice as many at a time as the endpoint takes, so
that pauses are filled. Prints a table, writes JSON, exits with 1 if a leg needs over 1.2 times the ideal, or if the
attempts that were recorded are not the requests that the server saw.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from afm_core.config import AgentConfig, EndpointConfig, TeamConfig
from afm_core.data import AgentTask, Tag
from afm_core.engines.backbone import BackbonePool, ChatRequest, ChatRole, Message, Sampling
from afm_core.teacher.team import Setting
from afm_core.teacher.team.figures import outcome_figures, tip_figures
from afm_core.teacher.team.shard import Shard, play_shard
from afm_core.tools.protocol import ToolResult, ToolStatus

SERVER = Path(__file__).parents[1] / "tests" / "teacher" / "scripted_server.py"
LIMIT = 1.2
FAULTS = {
    "rate_limited": 0.01,
    "retry_after": 1.0,
    "error": 0.03,
    "slow": 0.02,
    "broken": 0.02,
    "malformed": 0.02,
    "garbage": 0.02,
    "cut": 0.02,
}


class Capital:
    """A tool that takes no time."""

    name, description = "search_local", "search"

    def call(self, argument: str) -> ToolResult:
        """The same line for everything."""
        return ToolResult(ToolStatus.OK, "Kenya: has the capital Nairobi.")


@contextmanager
def server(options: dict[str, float]) -> Iterator[str]:
    """A scripted server; its address."""
    command = [sys.executable, str(SERVER), json.dumps(options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


def stats(address: str) -> dict[str, Any]:
    """What the server saw."""
    with urllib.request.urlopen(f"{address}/stats", timeout=30) as reply:
        document: dict[str, Any] = json.load(reply)
    return document


def attempts_in(figures: dict[str, float]) -> int:
    """All attempts that the figures count."""
    return int(sum(count for name, count in figures.items() if name.startswith("attempts/")))


async def single_requests(pool: BackbonePool, count: int) -> int:
    """Ask `count` short questions at once; returns the attempts."""

    def request(number: int) -> ChatRequest:
        asked = (
            Message(role=ChatRole.SYSTEM, content="You check a proposed answer"),
            Message(role=ChatRole.USER, content=f"question {number}"),
        )
        return ChatRequest(model="m", messages=asked, sampling=Sampling(seed=number))

    ended = await asyncio.gather(*(pool.complete(request(number)) for number in range(count)))
    return sum(len(one.attempts) for one in ended)


async def whole_rollouts(pool: BackbonePool, count: int, concurrency: int) -> int:
    """Play `count` rollouts of the team; returns the attempts."""
    config = TeamConfig(models=("m",), rollouts=4, concurrency=2 * concurrency, tips_per_shard=0)
    tasks = [AgentTask.create(f"What is the capital of Kenya, asked {n}?", ("Nairobi",)) for n in range(count // 4)]
    setting = Setting(pool, config, AgentConfig(), {Tag.WEB_SEARCH: Capital()})
    result = await play_shard(Shard(tasks), setting, lambda recording: None)
    figures = sum((outcome_figures(one) for one in result.outcomes), tip_figures(result.tips))
    return attempts_in(figures)


async def leg(name: str, address: str, arguments: argparse.Namespace) -> tuple[int, float]:
    """(attempts recorded, seconds) of one leg."""
    endpoint = EndpointConfig(
        name="scripted", base_url=f"{address}/v1", model="m", concurrency=arguments.concurrency, timeout_seconds=60
    )
    async with BackbonePool([endpoint]) as pool:
        started = time.perf_counter()
        if name == "single requests":
            attempts = await single_requests(pool, arguments.requests)
        else:
            attempts = await whole_rollouts(pool, arguments.rollouts, arguments.concurrency)
        return attempts, time.perf_counter() - started


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--rollouts", type=int, default=96)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.3, help="service time of a request")
    parser.add_argument("--out", type=Path, default=Path("teacher_endpoints.json"))
    arguments = parser.parse_args()
    legs, fine = [], True
    for name in ("single requests", "whole rollouts"):
        with server({"seconds": arguments.seconds, **FAULTS}) as address:
            attempts, seconds = asyncio.run(leg(name, address, arguments))
            seen = stats(address)
        rests = seen["faults"].get("rate_limited", 0) * FAULTS["retry_after"]
        ideal = seen["service"] / arguments.concurrency + rests
        ratio = seconds / ideal
        fine = fine and ratio <= LIMIT and attempts == seen["requests"]
        legs.append(
            {
                "leg": name,
                "requests": seen["requests"],
                "attempts_recorded": attempts,
                "faults": seen["faults"],
                "ideal_seconds": round(ideal, 2),
                "seconds": round(seconds, 2),
                "ratio": round(ratio, 3),
            }
        )
        print(f"{name:<16} {seen['requests']:>5} requests, ideal {ideal:6.1f} s, took {seconds:6.1f} s: {ratio:.3f}")
    arguments.out.write_text(json.dumps({"limit": LIMIT, "legs": legs}, indent=2) + "\n")
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
