"""The team against a real vLLM server on this machine's CPU: does the whole protocol hold with a real, small model?

    python benchmarks/teacher_vllm.py --tasks 2 --rollouts 2

SmolLM2-135M (`afm models fetch smollm2-135m`) knows next to nothing, so no right answer is expected. Checked is: the
server holds replies to the agents' JSON schemas, every rollout ends with a status, every reply brings its token counts,
tools were called, each recording is replayed without the server to the same recording, and what was converted obeys the
grammar if it was completed. Prints the figures, writes JSON, exits with 1 if a check fails.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from afm_core.config import AgentConfig, Budget, EndpointConfig, ServerConfig, Structure, TeamConfig, ToolProtocol
from afm_core.data import AgentTask, Document, Status
from afm_core.engines.backbone import BackbonePool, Exchange
from afm_core.engines.backbone.ray_servers import served
from afm_core.engines.backbone.vllm_server import ChatServer, vllm_command
from afm_core.teacher.team import Setting, TeamEvent, TeamRecording, replay
from afm_core.teacher.team.figures import outcome_figures
from afm_core.teacher.team.shard import Shard, play_shard
from afm_core.tools import build_tools

CPU = {
    "OMP_NUM_THREADS": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "0-1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}
DOCUMENTS = [
    ("Kenya", "Kenya has the capital Nairobi. Kenya has the currency Kenyan shilling."),
    ("Peru", "Peru has the capital Lima. Peru has the currency Sol."),
    ("Nairobi", "Nairobi is a city in the country Kenya."),
]
TASKS = [
    AgentTask.create("What is the capital of Kenya?", ("Nairobi",)),
    AgentTask.create("What is the currency of Peru?", ("Sol",)),
    AgentTask.create("In which country is Nairobi?", ("Kenya",)),
]
AGENT = AgentConfig(budget=Budget(tool_calls=6))


def team(arguments: argparse.Namespace) -> TeamConfig:
    """A team for a model that needs every help: schemas enforced, short replies, few steps."""
    return TeamConfig(
        models=("smollm2",),
        rollouts=arguments.rollouts,
        concurrency=4,
        tool_protocol=ToolProtocol.JSON,
        structure=Structure.BOUNDED,
        reply_tokens=400,
        subtask_turns=2,
        subtask_attempts=1,
        revisions=1,
        model_calls=16,
        tips_per_shard=1,
    )


@contextmanager
def endpoint(model: str, ray: bool, scratch: Path) -> Iterator[EndpointConfig]:
    """A vLLM server on this machine's CPU, started here or by an actor of a local Ray."""
    more = ("--max-model-len", "4096", "--dtype", "float32")
    os.environ.update({name: os.environ.get(name, value) for name, value in CPU.items()})
    if ray:
        server = ServerConfig(
            model="smollm2", source=model, gpus=0, cpus=2, concurrency=4, timeout_seconds=600, arguments=more
        )
        with served([server]) as places:
            yield places[0]
        return
    with ChatServer(vllm_command(model, "smollm2", more), scratch / "vllm.log") as started:
        yield EndpointConfig(
            name="vllm", base_url=started.base_url, model="smollm2", concurrency=4, timeout_seconds=600
        )


async def play(config: TeamConfig, place: EndpointConfig, tasks: list[AgentTask], scratch: Path) -> dict[str, Any]:
    """The figures and checks of all rollouts."""
    documents = [Document.create(title.casefold(), title, text, component="world") for title, text in DOCUMENTS]
    tools = build_tools(AGENT, documents, scratch)
    started = time.perf_counter()
    async with BackbonePool([place]) as pool:
        result = await play_shard(Shard(tasks), Setting(pool, config, AGENT, tools), lambda recording: None)
    seconds = time.perf_counter() - started
    recordings = [one for outcome in result.outcomes for one in outcome.recordings]
    figures: Counter[str] = Counter()
    for outcome in result.outcomes:
        figures.update(outcome_figures(outcome))
    replies = [event.exchange.reply for one in recordings for event in one.events if event.exchange]
    checks = {
        "every rollout ended with a status": figures["rollouts"] == len(tasks) * config.rollouts == len(recordings),
        "replies bring their token counts": all(one and one.tokens.prompt and one.tokens.completion for one in replies),
        "the server held every reply to its schema": all(fits(event.exchange) for event in asked(recordings)),
        "tools were called": any(event.call for one in recordings for event in one.events),
        "each recording replays to itself": all([await same(one, config) for one in recordings]),
        "completed ones obey the grammar": figures["invalid"] == 0,
        "no rollout was aborted": not any(one.status is Status.ABORTED for one in recordings),
    }
    return {
        "seconds": round(seconds, 1),
        "read_share": round(read_share(recordings), 3),
        "failures": [one.failure for one in recordings if one.failure],
        "figures": dict(sorted(figures.items())),
        "checks": checks,
    }


def read_share(recordings: list[TeamRecording]) -> float:
    """The share of replies that made sense too: a plan's graph, for one, is beyond a schema, and beyond this model."""
    events = asked(recordings)
    return sum(event.data is not None for event in events) / max(len(events), 1)


def asked(recordings: list[TeamRecording]) -> list[TeamEvent]:
    """Every activation of a model."""
    return [event for one in recordings for event in one.events if event.exchange]


def fits(exchange: Exchange | None) -> bool:
    """Whether a reply is an object with exactly the fields of the schema that its request asked for."""
    if exchange is None or exchange.reply is None or exchange.request.response_format is None:
        return False
    wanted = exchange.request.response_format["json_schema"]["schema"]["required"]
    return set(json.loads(exchange.reply.content)) == set(wanted)


async def same(recording: TeamRecording, config: TeamConfig) -> bool:
    """Whether a replay without the server gives the same recording."""
    return (await replay(recording, config, AGENT)).without_times() == recording.without_times()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="", help="a model directory [default: the fetched SmolLM2]")
    parser.add_argument("--ray", action="store_true", help="let an actor of a local Ray hold the server")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--rollouts", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("teacher_vllm.json"))
    arguments = parser.parse_args()
    model = arguments.model
    if not model:
        from afm_core.training import cached_models

        model = next((one["path"] for one in cached_models() if one["name"].startswith("smollm2")), "")
    if not model:
        sys.exit("no model: run `afm models fetch smollm2-135m`, or give --model DIR")
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch, endpoint(model, arguments.ray, Path(scratch)) as place:
        start = time.perf_counter() - begun
        print(f"server healthy after {start:.0f} s")
        tasks = TASKS[: arguments.tasks]
        document = asyncio.run(play(team(arguments), place, tasks, Path(scratch) / "index"))
    document["server_start_seconds"] = round(start, 1)
    arguments.out.write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps(document["figures"], indent=2))
    for name, holds in document["checks"].items():
        print(f"  {'ok' if holds else 'FAILED':<7} {name}")
    sys.exit(0 if all(document["checks"].values()) else 1)


if __name__ == "__main__":
    main()
