"""Kill the smoke run at random moments until it has survived N kills; it must end with an uninterrupted run's digests.

    python benchmarks/kill_study.py --kills 10 --seed 0

Each kill is SIGKILL to the run's whole process group (`afm run` and everything it started in it; what leads a group of
its own dies by its lifeline). Prints a table and writes JSON; exits 1 if any digest differs.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def start(home: Path, extra: list[str]) -> "subprocess.Popen[str]":
    """Start `afm run --profile smoke` as the leader of its own process group."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return subprocess.Popen(
        [sys.executable, "-m", "afm_cli.main", "run", "--profile", "smoke", "--json", *extra],
        env={**environment, "AFM_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def finish(home: Path, extra: list[str]) -> dict[str, Any]:
    """Run to the end; returns the run's JSON document."""
    process = start(home, extra)
    output, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"the run failed with exit code {process.returncode}; see {home}/runs")
    document: dict[str, Any] = json.loads(output)
    return document


def digests(document: dict[str, Any]) -> dict[str, str]:
    """Stage -> digest."""
    return {stage["name"]: stage["artifact"]["digest"] for stage in document["stages"]}


def main() -> None:
    """Reference run, interrupted run, comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=60.0, help="seconds before a kill, at most")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--out", type=Path, default=Path("kill_study.json"))
    arguments = parser.parse_args()
    extra = [part for override in arguments.overrides for part in ("--set", override)]
    generator = random.Random(arguments.seed)
    root = Path(tempfile.mkdtemp(prefix="kill_study_"))

    began = time.monotonic()
    reference = digests(finish(root / "reference", extra))
    print(f"uninterrupted run: {time.monotonic() - began:.0f} s")
    moments = []
    for number in range(arguments.kills):
        wait = generator.uniform(8.0, arguments.longest)
        process = start(root / "killed", extra)
        try:
            process.wait(wait)
            print(f"kill {number + 1:>2}: the run ended before {wait:.0f} s")
            moments.append({"seconds": wait, "killed": False})
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            made = len(list((root / "killed" / "store" / "keys").glob("*")))
            print(f"kill {number + 1:>2}: after {wait:5.1f} s, {made} stages committed")
            moments.append({"seconds": wait, "killed": True, "committed": made})
    survived = digests(finish(root / "killed", extra))
    different = sorted(name for name in reference if reference[name] != survived.get(name))
    for name in sorted(reference):
        print(f"{name:<20} {reference[name][:16]} {'equal' if name not in different else 'DIFFERENT'}")
    arguments.out.write_text(json.dumps({"kills": moments, "different": different, "digests": reference}, indent=2))
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
