"""The real servers: the whole stack from `afm up` to `afm down`, and Prefect and MLflow on a real Postgres."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from postgres_server import running_postgres

from afm_core.config.environment import OWN_CHOICES
from afm_core.services import SETTABLE_PORTS, ports, processes
from afm_core.services.state import Places, load_record

pytestmark = pytest.mark.integration


class Afm:
    """The command line in one home, with ports of its own."""

    def __init__(self, home: Path, **environment: str) -> None:
        chosen = {name for names in OWN_CHOICES.values() for name in names}
        bare = {name: value for name, value in os.environ.items() if name not in chosen}
        self.environment = bare | {"AFM_HOME": str(home)} | environment
        used: set[int] = set()
        self.ports = {}
        for name in SETTABLE_PORTS:
            self.ports[name] = ports.choose(True, used)
            used |= {self.ports[name], self.ports[name] + ports.PARTNER}

    def __call__(self, *arguments: str, code: int = 0) -> Any:
        command = [sys.executable, "-m", "afm_cli.main", *arguments, "--json"]
        ended = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=400)
        assert ended.returncode == code, f"{ended.stdout}\n{ended.stderr}"
        return json.loads(ended.stdout)

    def up(self, *only: str) -> dict[str, dict[str, Any]]:
        options = [f"--{name}-port={port}" for name, port in self.ports.items()]
        return by_name(self("up", *options, *(f"--only={name}" for name in only)))

    def variables(self) -> dict[str, str]:
        variables: dict[str, str] = self("status", "--env")
        return variables


def by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in document["services"]}


def ask(url: str, body: Any = None, token: str | None = None, method: str | None = None) -> Any:
    """The JSON answer to a request (None: an empty one), or its status code if it was refused."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or "null")
    except urllib.error.HTTPError as error:
        return error.code


def processes_of(home: Path) -> list[psutil.Process]:
    record = load_record(Places(home))
    return [one for name in record.services for one in processes.members(f"{record.stack}/{name}")] if record else []


@pytest.fixture
def afm(own_home: Path) -> Iterator[Afm]:
    afm = Afm(own_home)
    try:
        yield afm
    finally:
        afm("down")


def test_the_whole_stack(afm: Afm, own_home: Path) -> None:
    services = afm.up()
    assert {name: one["healthy"] for name, one in services.items()} == dict.fromkeys(
        ("prefect", "worker", "mlflow", "s3", "ray"), True
    )
    variables = afm.variables()
    started = processes_of(own_home)
    record = load_record(Places(own_home))
    assert record is not None

    listening = [c.laddr.ip for p in started for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    secret = [variables["AWS_SECRET_ACCESS_KEY"], variables["RAY_AUTH_TOKEN"]]
    assert not any(word in " ".join(process.cmdline()) for process in started for word in secret)
    assert not any(word in Places(own_home).record.read_text() for word in secret)

    check_s3(variables)
    check_mlflow(variables["MLFLOW_TRACKING_URI"])
    check_worker(variables["PREFECT_API_URL"])
    check_ray_job(variables)

    run = start_deployed_run(afm, variables["PREFECT_API_URL"])
    os.kill(services["mlflow"]["pid"], signal.SIGKILL)
    os.kill(services["worker"]["pid"], signal.SIGKILL)
    assert ended(run) == "COMPLETED", ask(run)["state"]
    dead = by_name(afm("status", code=1))
    assert {name for name, one in dead.items() if not one["healthy"]} == {"mlflow", "worker"}
    again = afm.up()
    assert {name for name in services if again[name]["pid"] != services[name]["pid"]} == {"mlflow", "worker"}
    assert all(one["healthy"] for one in again.values())
    assert afm.variables() == variables
    assert "afm-test" in str(ask(f"{variables['MLFLOW_TRACKING_URI']}/api/2.0/mlflow/experiments/search?max_results=9"))

    started = [*started, *processes_of(own_home)]
    afm("down")
    assert [process for process in started if processes.start_of(process.pid) is not None] == []
    assert record.scratch is None or not Path(record.scratch).exists()
    assert not Places(own_home).environment.exists()
    assert afm("status") == {"services": []}


def start_deployed_run(afm: Afm, api: str) -> str:
    """The address of a run that a worker started and that has reached its first stages."""
    afm("deploy", "--profile=smoke", "--no-schedules")
    deployment = ask(f"{api}/deployments/name/pipeline/nightly")["id"]
    parameters = {"profile": "smoke", "until": "tasks"}
    run = ask(
        f"{api}/deployments/{deployment}/create_flow_run", {"parameters": parameters, "state": {"type": "SCHEDULED"}}
    )
    stages = {"flow_runs": {"id": {"any_": [run["id"]]}}}
    wait_until(lambda: ask(f"{api}/task_runs/filter", stages) != [])
    return f"{api}/flow_runs/{run['id']}"


def ended(run: str) -> str:
    """The type of the state that the run ends with."""
    final = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    wait_until(lambda: ask(run)["state"]["type"] in final)
    return str(ask(run)["state"]["type"])


def wait_until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def check_s3(variables: dict[str, str]) -> None:
    import s3fs

    def files(secret: str) -> s3fs.S3FileSystem:
        key, endpoint = variables["AWS_ACCESS_KEY_ID"], variables["AWS_ENDPOINT_URL"]
        return s3fs.S3FileSystem(key=key, secret=secret, endpoint_url=endpoint, skip_instance_cache=True)

    place = f"{variables['AFM_STORE']}/test"
    files(variables["AWS_SECRET_ACCESS_KEY"]).pipe_file(place, b"content")
    assert files(variables["AWS_SECRET_ACCESS_KEY"]).cat_file(place) == b"content"
    with pytest.raises(PermissionError):
        files("wrong").cat_file(place)


def check_mlflow(url: str) -> None:
    experiment = ask(f"{url}/api/2.0/mlflow/experiments/create", {"name": "afm-test"})["experiment_id"]
    run = ask(f"{url}/api/2.0/mlflow/runs/create", {"experiment_id": experiment, "start_time": 1})["run"]["info"]
    metric = {"run_id": run["run_id"], "key": "loss", "value": 0.5, "timestamp": 2, "step": 3}
    assert ask(f"{url}/api/2.0/mlflow/runs/log-metric", metric) == {}
    found = ask(f"{url}/api/2.0/mlflow/runs/get?run_id={run['run_id']}")
    assert found["run"]["data"]["metrics"] == [{"key": "loss", "value": 0.5, "timestamp": 2, "step": 3}]
    assert run["artifact_uri"].startswith("mlflow-artifacts:/")
    path = run["artifact_uri"].removeprefix("mlflow-artifacts:/")
    assert ask(f"{url}/api/2.0/mlflow-artifacts/artifacts/{path}/a.json", b'["text"]', method="PUT") is None
    assert ask(f"{url}/api/2.0/mlflow-artifacts/artifacts/{path}/a.json") == ["text"]


def check_worker(api: str) -> None:
    assert ask(f"{api}/work_pools/local")["type"] == "process"
    (worker,) = ask(f"{api}/work_pools/local/workers/filter", {})
    assert (worker["name"], worker["status"]) == ("afm", "ONLINE")


def check_ray_job(variables: dict[str, str]) -> None:
    """A job needs the token, and sees the stack and the home."""
    jobs, token = f"{variables['AFM_RAY_DASHBOARD']}/api/jobs/", variables["RAY_AUTH_TOKEN"]
    body = {"entrypoint": "echo $MLFLOW_TRACKING_URI $AFM_STORE $AFM_HOME", "submission_id": "a-job"}
    assert (ask(jobs, body), ask(jobs, body, "wrong")) == (401, 403)
    assert ask(jobs, body, token)["submission_id"] == "a-job"
    deadline = time.monotonic() + 100
    while (job := ask(f"{jobs}a-job", token=token))["status"] in ("PENDING", "RUNNING"):
        assert time.monotonic() < deadline, job
        time.sleep(0.5)
    assert job["status"] == "SUCCEEDED", job
    written = ask(f"{jobs}a-job/logs", token=token)["logs"]
    assert f"{variables['MLFLOW_TRACKING_URI']} s3://artifacts/afm /" in written


def test_prefect_and_mlflow_on_a_real_postgres(own_home: Path) -> None:
    import psycopg2

    with running_postgres() as url:
        password = url.partition("@")[0].rpartition(":")[2]
        afm = Afm(own_home, AFM_POSTGRES_URL=url)
        try:
            afm.up("prefect", "mlflow")
            started = processes_of(own_home)
            variables = afm.variables()
            ask(f"{variables['PREFECT_API_URL']}/flows/", {"name": "a-flow"})
            check_mlflow(variables["MLFLOW_TRACKING_URI"])
            assert not any(password in " ".join(process.cmdline()) for process in started)
        finally:
            afm("down")
        rows = {}
        for database, query in (("prefect", "SELECT name FROM flow"), ("mlflow", "SELECT value FROM metrics")):
            connection = psycopg2.connect(f"{url}/{database}")
            with connection.cursor() as cursor:
                cursor.execute(query)
                rows[database] = cursor.fetchall()
            connection.close()
        assert rows == {"prefect": [("a-flow",)], "mlflow": [(0.5,)]}
    files = [path for path in (own_home / "services").rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix == ".db"] == []
    assert [path for path in files if password in path.read_text(errors="replace")] == []
