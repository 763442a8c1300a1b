"""Eight pipeline runs at once on the real servers, four of them identical, at most two stages running at a time.

    python benchmarks/concurrent_runs.py --home /big/disk/concurrent

Starts the stack of `afm up` in a home of its own and stops it at the end. Checks that every run ends, that identical
runs share their artifacts, that the artifacts verify, and, from the processes themselves, how many stages ever ran at a
time. Prints a table, writes JSON, and exits with 1 if a check failed.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from afm_command import AFM, afm

IDENTICAL, DISTINCT, LIMIT = 4, 4, 2
STAGE = ["-m", "afm_cli.main", "stage"]


def start(overrides: Sequence[str], log: Path) -> "subprocess.Popen[str]":
    """One pipeline run of the smoke profile."""
    changes = [part for one in overrides for part in ("--set", one)]
    with log.open("w") as stream:
        command = [*AFM, "run", "--profile", "smoke", *changes, "--json"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True)


class StageCounter:
    """The most stage processes below this one that were seen at a time, looked at five times a second."""

    def __init__(self) -> None:
        self.most = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "StageCounter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            self.most = max(self.most, sum(is_stage(one) for one in psutil.Process().children(recursive=True)))


def is_stage(process: psutil.Process) -> bool:
    """Whether a process runs a stage. Not its forks: they have the same command line, and a stage as their parent."""
    try:
        parent = process.parent()
        return process.cmdline()[1:4] == STAGE and (parent is None or parent.cmdline()[1:4] != STAGE)
    except psutil.Error:
        return False


def digests(document: dict[str, Any]) -> dict[str, str]:
    """stage -> digest of its artifact."""
    return {stage["name"]: stage["artifact"]["digest"] for stage in document["stages"]}


def run(logs: Path) -> dict[str, Any]:
    """All runs; the figures and checks."""
    logs.mkdir(parents=True, exist_ok=True)
    limits = [part for name in ("stage", "gpu", "ray") for part in ("--limit", f"{name}={LIMIT}")]
    afm("deploy", "--profile", "smoke", "--no-schedules", *limits)
    started = time.monotonic()
    with StageCounter() as counter:
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
        "most_stages_at_a_time": counter.most,
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
