"""The smoke pipeline embedded, and on real services with a two-node Ray cluster: the artifacts must be the same.

    python benchmarks/same_digests.py --home /big/disk/digests

The first run has everything in its own processes and a store in a directory. The second one uses the Prefect, MLflow
and S3 servers of `afm up`, and sends every stage as a job to a Ray cluster of two nodes on this machine (a head and one
more, started here, because the head of `afm up` serves this machine alone). Prints a table of content digests, writes
JSON, and exits with 1 if any differs or if both nodes were not there.
"""

import argparse
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from afm_command import afm

RAY = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats")
CPUS_A_NODE = 2
START_SECONDS = 120


def free_port() -> int:
    """A port of loopback that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def node(variables: Mapping[str, str], *flags: str, log: Path) -> "subprocess.Popen[bytes]":
    """One node of the cluster, in a session of its own."""
    environment = {**os.environ, **variables}
    common = (
        "--node-ip-address=127.0.0.1",
        f"--num-cpus={CPUS_A_NODE}",
        "--object-store-memory=120000000",
        f"--dashboard-agent-listen-port={free_port()}",  # Ray's default would serve one node a machine
        f"--metrics-export-port={free_port()}",
    )
    with log.open("wb") as stream:
        return subprocess.Popen(
            [*RAY, *common, *flags], stdout=stream, stderr=stream, start_new_session=True, env=environment
        )


def alive(dashboard: str) -> int:
    """How many nodes are alive, by the dashboard; 0 while it does not answer."""
    access = {"Authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"}
    try:
        answer = httpx.get(f"{dashboard}/api/v0/nodes", timeout=5, headers=access).json()
    except (httpx.HTTPError, ValueError):
        return 0
    nodes = answer.get("data", {}).get("result", {}).get("result", [])
    return sum(one.get("state") == "ALIVE" for one in nodes)


@contextmanager
def two_nodes(home: Path, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(address, dashboard) of a cluster of two nodes with these environment variables, gone afterwards."""
    port, dashboard_port = free_port(), free_port()
    address, dashboard = f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard_port}"
    head = node(
        variables,
        "--head",
        f"--port={port}",
        f"--dashboard-port={dashboard_port}",
        "--dashboard-host=127.0.0.1",
        f"--temp-dir={home / 'ray'}",
        log=home / "head.log",
    )
    nodes = [head]
    try:
        wait_for(lambda: alive(dashboard) >= 1, "Ray's head")
        nodes.append(node(variables, f"--address={address}", log=home / "second.log"))
        wait_for(lambda: alive(dashboard) >= len(nodes), "Ray's second node")
        yield address, dashboard
    finally:
        for one in reversed(nodes):
            one.send_signal(signal.SIGTERM)
        for one in nodes:
            one.wait(60)


def wait_for(ready: Any, what: str) -> None:
    """Return when ready() is true. Raises RuntimeError after START_SECONDS."""
    until = time.monotonic() + START_SECONDS
    while not ready():
        if time.monotonic() > until:
            raise RuntimeError(f"{what} did not start within {START_SECONDS} s")
        time.sleep(1)


def stages(document: dict[str, Any]) -> dict[str, str]:
    """Stage -> content digest of its artifact."""
    return {stage["name"]: stage["artifact"]["digest"] for stage in document["stages"]}


def on_services(home: Path) -> tuple[dict[str, str], int]:
    """The stages' digests of a run on the services and the cluster, and how many nodes were alive at its end.

    A job takes the addresses and secrets of the services from the cluster's own environment.
    """
    own = {"AFM_HOME": str(home)}
    afm("up", **own)
    try:
        services = {name: value for name, value in afm("status", "--env", **own).items() if "RAY" not in name}
        with two_nodes(home, services) as (address, dashboard):
            cluster = {"RAY_ADDRESS": address, "AFM_RAY_DASHBOARD": dashboard}
            document = afm("run", "--profile", "smoke", "--set", "execution.runner=ray_job", **own, **cluster)
            return stages(document), alive(dashboard)
    finally:
        afm("down", **own)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", type=Path, required=True, help="a folder for both runs; keep its path short")
    parser.add_argument("--out", type=Path, default=Path("same_digests.json"))
    arguments = parser.parse_args()
    home = arguments.home.resolve()
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    for name in ("embedded", "services"):
        (home / name).mkdir(parents=True, exist_ok=True)
    embedded = stages(afm("run", "--profile", "smoke", AFM_HOME=str(home / "embedded")))
    services, nodes = on_services(home / "services")
    names = list(dict.fromkeys([*embedded, *services]))
    same = {name: embedded.get(name) == services.get(name) for name in names}
    print(f"{'stage':<24} {'embedded':<14} {'services':<14} same")
    for name in names:
        print(f"{name:<24} {embedded.get(name, '-')[:12]:<14} {services.get(name, '-')[:12]:<14} {same[name]}")
    print(f"{sum(same.values())} of {len(same)} equal; {nodes} Ray nodes")
    figures = {"embedded": embedded, "services": services, "nodes": nodes}
    arguments.out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0 if all(same.values()) and nodes == 2 else 1


if __name__ == "__main__":
    sys.exit(main())
