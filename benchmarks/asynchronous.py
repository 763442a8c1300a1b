"""Asynchronous against synchronous RL with slow tools: steps an hour in one run, and rewards at equal samples.

    python benchmarks/asynchronous.py --model DIGEST --steps 12 --seeds 0 1 2

The smoke profile's model in one rollout worker, every tool call takes a second longer, one thread each for trainer and
engine. Both modes train the same number of groups a step. The first step (start-up) is left out. Rewards are the shaped
rewards' raw part: what the verifier said and whether an answer came, averaged over the last half of the steps.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from afm_core.config import load_config
from afm_core.execution import RunSession, new_run_id
from afm_core.execution.rl_inputs import rl_inputs
from afm_core.store import ArtifactKind

COMMON = (
    "rollout.workers=1",
    "rollout.simulated_tool_seconds=1.0",
    "rollout.deterministic=false",
    "rl.threads=1",
    "engine.threads=1",
    "execution.ray_cpus=2",
    "rl.prompts=4",
    "rl.group_size=4",
    "rl.evaluate_every=1000000",
    "rl.dev_limit=1",
)


def train(model: str, staleness: int, seed: int, steps: int, overrides: Sequence[str]) -> dict[str, Any]:
    """One RL run; its seconds a step and completion shares."""
    more = (f"rl.maximum_staleness={staleness}", f"rl.seed={seed}", f"rl.steps={steps}")
    config = load_config("smoke", None, [*COMMON, *more, *overrides])
    with RunSession(config, new_run_id()) as session:
        inputs = rl_inputs(session.store, session.store.find(model, ArtifactKind.MODEL), None)
        held = {"tasks": inputs.tasks, "corpus": inputs.corpus, "policy": inputs.policy}
        selected = session.execute("select", {**held, "base": inputs.base}).artifact
        record = session.execute("rl", {**held, "selected": selected})
        directory = session.store.open(record.artifact).path
    lines = (directory / "sidecar" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    completed = [one["status"].get("completed", 0) / sum(one["status"].values()) for one in records]
    return {
        "staleness": staleness,
        "seed": seed,
        "seconds": [one["seconds"] for one in records],
        "steps_an_hour": 3600 / statistics.mean(one["seconds"] for one in records[1:]),
        "completed": statistics.mean(completed[len(completed) // 2 :]),
        "oldest": max(one["staleness"] for one in records),
        "stale_groups": sum(one["stale_groups"] for one in records),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="an SFT model of the smoke profile in the store of AFM_HOME")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--staleness", type=int, default=1)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--out", type=Path, default=Path("asynchronous.json"))
    arguments = parser.parse_args()
    runs = [
        train(arguments.model, staleness, seed, arguments.steps, arguments.overrides)
        for seed in arguments.seeds
        for staleness in (0, arguments.staleness)
    ]
    print(f"{'mode':<14} {'seed':>4} {'steps/h':>8} {'answered':>9} {'oldest token':>13} {'stale groups':>13}")
    for one in runs:
        mode = "asynchronous" if one["staleness"] else "synchronous"
        print(
            f"{mode:<14} {one['seed']:>4} {one['steps_an_hour']:>8.0f} {one['completed']:>9.1%} {one['oldest']:>13} "
            f"{one['stale_groups']:>13}"
        )
    speeds = [
        statistics.mean(one["steps_an_hour"] for one in runs if bool(one["staleness"]) is asynchronous)
        for asynchronous in (False, True)
    ]
    print(f"ratio of steps an hour: {speeds[1] / speeds[0]:.2f}")
    arguments.out.write_text(json.dumps({"runs": runs, "ratio": speeds[1] / speeds[0]}, indent=2) + "\n")


if __name__ == "__main__":
    main()
