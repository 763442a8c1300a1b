"""`afm up`, `down`, `status`: documents, exit codes, and that every other command joins."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from small_servers import kill

from afm_cli.services import down, status, up
from afm_core.config.environment import OWN_CHOICES
from afm_core.services import ServiceName
from afm_core.services.client import credentials_of, variables_of, write_environment
from afm_core.services.state import Places

PORTS = {"prefect": 1, "mlflow": 2, "s3": 3, "ray": 4, "ray-dashboard": 5}


def test_the_documents_and_exit_codes(own_home: Path, small: dict[ServiceName, str]) -> None:
    started = CliRunner().invoke(up, ["--only", "s3", "--only", "worker", "--json"])
    assert started.exit_code == 0, started.output
    services = {one["name"]: one for one in json.loads(started.stdout)["services"]}
    assert set(services) == {"prefect", "worker", "s3"}
    assert all(one["healthy"] and one["state"] == "running" for one in services.values())
    assert "s3: healthy after" in started.stderr

    kill(services["s3"]["pid"])
    asked = CliRunner().invoke(status, ["--json"])
    dead = {one["name"]: one["healthy"] for one in json.loads(asked.stdout)["services"]}
    assert (asked.exit_code, dead) == (1, {"prefect": True, "worker": True, "s3": False})
    shown = CliRunner().invoke(status, [])
    assert (shown.exit_code, "is gone" in shown.stdout) == (1, True)

    stopped = CliRunner().invoke(down, ["--json"])
    assert (stopped.exit_code, {one["name"] for one in json.loads(stopped.stdout)["services"]}) == (0, set(services))
    assert json.loads(CliRunner().invoke(status, ["--json"]).stdout) == {"services": []}


def test_a_failed_start_shows_the_last_lines_and_ends_with_1(own_home: Path, small: dict[ServiceName, str]) -> None:
    small[ServiceName.MLFLOW] = "import sys; print('the cause'); sys.exit(3)"
    ended = CliRunner().invoke(up, ["--only", "mlflow"])
    assert ended.exit_code == 1
    assert "mlflow | the cause" in ended.stderr


def test_the_environment_is_printed_for_a_shell(places: Places) -> None:
    credentials, _ = credentials_of({})
    services = {name: variables_of(name, PORTS, credentials) for name in ServiceName}
    write_environment(places, services)
    printed = CliRunner().invoke(status, ["--env"]).stdout
    read = subprocess.run(
        ["bash", "-c", f"{printed}\nenv"], env={}, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {f"{name}={value}" for one in services.values() for name, value in one.items()} <= set(read)


@pytest.mark.parametrize(("own", "expected"), [({}, "http://127.0.0.1:2"), ({"MLFLOW_TRACKING_URI": "mine"}, "mine")])
def test_every_command_joins(places: Places, own: dict[str, str], expected: str) -> None:
    credentials, _ = credentials_of({})
    write_environment(places, {name: variables_of(name, PORTS, credentials) for name in ServiceName})
    chosen = {name for names in OWN_CHOICES.values() for name in names}
    environment = {name: value for name, value in os.environ.items() if name not in chosen} | own
    program = (
        "import os, sys; from afm_cli import main; sys.argv = ['afm', 'runs', 'ls'];"
        "main.afm.main(standalone_mode=False); print(os.environ['MLFLOW_TRACKING_URI'])"
    )
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == expected
