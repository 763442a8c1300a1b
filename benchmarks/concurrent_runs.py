"""Eight pipeline runs at once on the real servers, four of them identical, at most two stages running at a time.

    python benchmarks/concurrent_runs.py --home /big/disk/concurrent

Starts the stack of `afm up` in a home of its own and stops it at the end. Checks that every run ends, that identical
runs share their artifacts, that the artifacts verify, and, from Prefect's own record, how many stages ever ran at a
time. Prints a table, writes JSON, and exits with 1 if a check failed.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from afm_command import AFM, afm

IDENTICAL, DISTINCT, LIMIT = 4, 4, 2


def start(overrides: Sequence[str], log: Path) -> "subprocess.Popen[str]":
    """One pipeline run of the smoke profile."""
    changes = [part for one in overrides for part in ("--set", one)]
    with log.open("w") as stream:
        command = [*AFM, "run", "--profile", "smoke", *changes, "--json"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True)


def most_at_a_time(api: str) -> int:
    """The most task runs with the tag `stage` that were running at one time, from Prefect's start and end times."""
    runs: list[dict[str, Any]] = []
    while page := httpx.post(
        f"{api}/task_runs/filter",
        json={"task_runs": {"tags": {"all_": ["stage"]}}, "offset": len(runs), "limit": 200},
        timeout=60,
    ).json():
        runs += page
    times = [(one["start_time"], one["end_time"]) for one in runs if one["start_time"] and one["end_time"]]
    changes = sorted([(begin, 1) for begin, _ in times] + [(end, -1) for _, end in times])
    most = running = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def digests(document: dict[str, Any]) -> dict[str, str]:
    """stage -> digest of its artifact."""
    return {stage["name"]: stage["artifact"]["digest"] for stage in document["stages"]}


def run(logs: Path) -> dict[str, Any]:
    """All runs; the figures and checks."""
    logs.mkdir(parents=True, exist_ok=True)
    limits = [part for tag in ("stage", "gpu", "ray") for part in ("--limit", f"{tag}={LIMIT}")]
    api = afm("deploy", "--profile", "smoke", "--no-schedules", *limits)["url"]
    started = time.monotonic()
    same = [start([], logs / f"identical-{number}.log") for number in range(IDENTICAL)]
    other = [start([f"sft.seed={number + 1}"], logs / f"distinct-{number}.log") for number in range(DISTINCT)]
    outputs = [process.communicate()[0] for process in (*same, *other)]
    seconds = round(time.monotonic() - started, 1)
    documents = [json.loads(text) for text in outputs]
    made = [digests(one) for one in documents]
    verification = afm("artifacts", "verify")
    return {
        "runs": len(documents),
        "seconds": seconds,
        "statuses": [one["status"] for one in documents],
        "most_stages_at_a_time": most_at_a_time(api),
        "checks": {
            "all completed": all(one["status"] == "completed" for one in documents),
            "identical runs share their artifacts": all(one == made[0] for one in made[:IDENTICAL]),
            "distinct runs made models of their own": len({one.get("sft") for one in made[IDENTICAL - 1 :]})
            == 1 + DISTINCT,
            "every artifact verifies": verification["verified"] > 0 and not verification["corrupt"],
        },
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", type=Path, required=True, help="a folder for the stack and the runs")
    parser.add_argument("--out", type=Path, default=Path("concurrent_runs.json"))
    arguments = parser.parse_args()
    os.environ["AFM_HOME"] = str(arguments.home.resolve())
    afm("up")
    try:
        figures = run(arguments.home / "logs")
    finally:
        afm("down")
    figures["checks"][f"at most {LIMIT} stages at a time"] = figures["most_stages_at_a_time"] <= LIMIT
    arguments.out.write_text(json.dumps(figures, indent=2) + "\n")
    print(
        f"{figures['runs']} runs in {figures['seconds']} s, at most {figures['most_stages_at_a_time']} stages at a time"
    )
    for name, holds in figures["checks"].items():
        print(f"  {'ok' if holds else 'FAILED':<7} {name}")
    sys.exit(0 if all(figures["checks"].values()) else 1)


if __name__ == "__main__":
    main()
