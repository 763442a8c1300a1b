"""The Ray cluster that a run's jobs go to, checked before the run starts: what a job there could not reach is refused.

A cluster whose dashboard answers on loopback is taken to be this machine: a job there sees this file system, this
`AFM_HOME` and this Python. A job elsewhere sees the store and the services alone, and gets its secrets (S3, MLflow,
Ray's token) from the environment of the cluster: none of them ever passes through Ray, which shows a job's environment
to everybody who may look at its dashboard.
"""

import ipaddress
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from afm_core.config import ConfigError, RunConfig, Runner
from afm_core.config.environment import QUIET
from afm_core.tracking import tracking_uri

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_PLACES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AFM_ENVIRONMENTS")


@dataclass(frozen=True)
class RayTarget:
    """Where jobs go (`dashboard`, an HTTP address), what brings the code, what a stage's own process takes there, and
    the seconds it has between SIGTERM and SIGKILL.
    """

    dashboard: str
    working_dir: str = ""
    cpus: float = 0.0
    gpus: float = 0.0
    stop_seconds: int = 60

    @property
    def is_local(self) -> bool:
        """Whether the cluster is this machine."""
        return is_loopback(self.dashboard)

    def job_url(self, job: str) -> str:
        """The job's page in Ray's dashboard."""
        return f"{self.dashboard}/#/jobs/{job}"

    def entrypoint(self, spec_uri: str) -> str:
        """The shell command of a job. `exec`: the process that Ray watches is the stage, so that its signal is told."""
        command = f"-m afm_cli.main stage {shlex.quote(spec_uri)}"
        if self.is_local and not self.working_dir:
            return f"cd {shlex.quote(os.getcwd())} && exec {shlex.quote(sys.executable)} {command}"
        return f"exec python {command}"

    def options(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """What `submit_job` is given beside id, entrypoint and metadata."""
        runtime: dict[str, Any] = {"env_vars": dict(environment)}
        if self.working_dir:
            runtime["working_dir"] = self.working_dir
        return {
            "runtime_env": runtime,
            "entrypoint_num_cpus": self.cpus or None,
            "entrypoint_num_gpus": self.gpus or None,
        }

    def environment(self, config: RunConfig, home: Path) -> dict[str, str]:
        """The variables of a job that are no secrets: switches, and places that it can reach."""
        names = (*QUIET, *_THREADS, *(_PLACES if self.is_local else ()))
        passed = {name: os.environ[name] for name in names if os.environ.get(name)}
        if self.is_local:
            passed["AFM_HOME"] = str(home)
        uri = tracking_uri(config.tracking)
        if not config.tracking.uri and _may_be_told(uri) and (self.is_local or not is_loopback(uri)):
            passed["MLFLOW_TRACKING_URI"] = uri
        return passed


def ray_target(config: RunConfig, store_uri: str) -> RayTarget | None:
    """The cluster of a run with the runner `ray_job`, else None.

    Raises:
        ConfigError: no address, or a store or MLflow that a job on another machine cannot reach.
    """
    execution = config.execution
    if execution.runner is not Runner.RAY_JOB:
        return None
    dashboard = (execution.ray_dashboard or os.environ.get("AFM_RAY_DASHBOARD", "")).rstrip("/")
    if not dashboard:
        raise ConfigError(
            "execution.runner is ray_job, and no cluster is named: set execution.ray_dashboard (or AFM_RAY_DASHBOARD) "
            "to the address of its dashboard, for example http://127.0.0.1:8265"
        )
    if "://" not in dashboard:
        dashboard = f"http://{dashboard}"
    target = RayTarget(
        dashboard=dashboard,
        working_dir=execution.ray_working_dir,
        cpus=execution.ray_job_cpus,
        gpus=execution.ray_job_gpus,
        stop_seconds=execution.ray_job_stop_seconds,
    )
    if target.is_local:
        return target
    if "://" not in store_uri or store_uri.startswith("file:"):
        raise ConfigError(
            f"the store {store_uri} is a directory of this machine, and the Ray cluster at {dashboard} is another one: "
            "give a store that both reach, for example --set store.uri=s3://bucket/prefix"
        )
    uri = tracking_uri(config.tracking)
    if config.tracking.enabled and not uri.startswith(("http://", "https://")):
        raise ConfigError(
            f"tracking.uri {uri} is a file of this machine, and the Ray cluster at {dashboard} is another one: set "
            "MLFLOW_TRACKING_URI to an MLflow server that both reach"
        )
    return target


def is_loopback(url: str) -> bool:
    """Whether the host of a URL is this machine by name or address."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _may_be_told(uri: str) -> bool:
    """A server's address without a user or a password in it."""
    parts = urlsplit(uri)
    return parts.scheme in ("http", "https") and not (parts.username or parts.password)
