"""What orchestration costs: seconds a stage beyond its work, library imports and Ray's start; and a fully cached run.

    python benchmarks/orchestration.py --home /big/disk/orchestration

Starts the stack of `afm up` in a home of its own, runs the smoke profile once and again (all cached), and stops the
stack. A stage's overhead is the duration of its Prefect task run less the wait for its turn (stages run one by one) and
less what its process says of itself: interpreter and imports, and the stage's function. Prints a table, writes JSON.
"""

import argparse
import json
import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from afm_command import afm


def task_seconds(api: str, flow_run: str) -> dict[str, float]:
    """Task run name -> seconds from its first start to its end."""
    found = httpx.post(
        f"{api}/task_runs/filter", json={"flow_runs": {"id": {"any_": [flow_run]}}, "limit": 200}, timeout=60
    ).json()
    return {
        one["name"].strip(): (
            datetime.fromisoformat(one["end_time"]) - datetime.fromisoformat(one["start_time"])
        ).total_seconds()
        for one in found
        if one["start_time"] and one["end_time"]
    }


def stage_rows(api: str, run: str, record: dict[str, Any]) -> list[dict[str, Any]]:
    """A row a stage: seconds of the task after its wait, of the process's start and imports, of the work, the rest."""
    tasks = task_seconds(api, record["links"]["flow_run"])
    rows = []
    for stage in record["stages"]:
        name = stage["name"].replace(":", " ", 1).strip()
        seconds = tasks[name] - stage["queued"]
        timings = stage["timings"]
        imports = timings.get("start", 0.0) + timings.get("imports", 0.0)
        work = timings.get("work", 0.0)
        rows.append(
            {
                "stage": stage["name"],
                "task": seconds,
                "imports": imports,
                "work": work,
                "overhead": seconds - imports - work,
            }
        )
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", type=Path, required=True, help="a folder for the stack and the runs")
    parser.add_argument("--out", type=Path, default=Path("orchestration.json"))
    arguments = parser.parse_args()
    home = arguments.home.resolve()
    os.environ["AFM_HOME"] = str(home)
    services = {one["name"]: one for one in afm("up")["services"]}
    try:
        api = f"{services['prefect']['url']}/api"
        run = afm("run", "--profile", "smoke", "--set", "execution.parallel_stages=1")["run_id"]
        rows = stage_rows(api, run, afm("runs", "show", run))
        started = time.monotonic()
        again = afm("run", "--profile", "smoke", "--set", "execution.parallel_stages=1")
        cached_seconds = round(time.monotonic() - started, 1)
        all_cached = all(stage["cached"] for stage in again["stages"])
    finally:
        afm("down")
    print(f"{'stage':<22} {'task':>7} {'imports':>8} {'work':>7} {'overhead':>9}   seconds")
    for row in rows:
        print(
            f"{row['stage']:<22} {row['task']:>7.1f} {row['imports']:>8.1f} {row['work']:>7.1f} {row['overhead']:>9.1f}"
        )
    print(f"most overhead: {max(row['overhead'] for row in rows):.1f} s")
    print(f"the same again, {'all cached' if all_cached else 'NOT all cached'}: {cached_seconds} s of wall time")
    figures = {"stages": rows, "cached_seconds": cached_seconds, "all_cached": all_cached}
    arguments.out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
