"""Puts the project's deployments on a Prefect server: work pools, limits, deployments, automations.

What is deployed is written in prefect.yaml and deployments/ and can be put there with Prefect's own commands, too; this
does all of it at once, as often as one likes. The server keeps what it has beyond these files.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from afm_core.config import ConfigError

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

ROOT = Path(__file__).parents[1]
PREFECT_FILE = ROOT / "prefect.yaml"
FOLDER = ROOT / "deployments"


@dataclass(frozen=True)
class Deployed:
    """What the server has now, by name; `limits` say how many stages that take it run at once."""

    url: str
    pools: tuple[str, ...]
    limits: dict[str, int]
    deployments: tuple[str, ...]
    automations: tuple[str, ...]


def deploy(profile: str | None, pool: str, limits: Mapping[str, int], schedules: bool) -> Deployed:
    """Put everything on the server of PREFECT_API_URL.

    Args:
        profile: the profile of every deployment; None keeps what prefect.yaml says.
        pool: the work pool that runs them, one of deployments/work_pools.
        limits: limit -> number, over deployments/limits.yaml.
        schedules: whether cron schedules are active.

    Raises:
        ConfigError: no server is named, an unknown pool or limit. RuntimeError: Prefect refused a deployment.
    """
    from prefect.client.orchestration import get_client

    if not os.environ.get("PREFECT_API_URL"):
        raise ConfigError(
            "there is no Prefect server to deploy to: start one with `afm up`, or set PREFECT_API_URL to yours"
        )
    pools = work_pools()
    if pool not in pools:
        raise ConfigError(f"no work pool {pool!r} in {FOLDER / 'work_pools'}; there are {', '.join(pools)}")
    wanted = stage_limits(limits)
    document = prefect_document(profile, pool, schedules)
    with get_client(sync_client=True) as client:
        for settings in pools.values():
            _create_pool(client, settings)
        for name, limit in wanted.items():
            client.upsert_global_concurrency_limit_by_name(name, limit)
        _deploy(document)
        names = tuple(_automate(client, path) for path in sorted((FOLDER / "automations").glob("*.yaml")))
    deployments = tuple(f"{_flow_name(one)}/{one['name']}" for one in document["deployments"])
    return Deployed(os.environ["PREFECT_API_URL"], tuple(pools), wanted, deployments, names)


def work_pools() -> dict[str, dict[str, Any]]:
    """The shipped work pools by name."""
    found = [read_yaml(path) for path in sorted((FOLDER / "work_pools").glob("*.yaml"))]
    return {one["name"]: one for one in found}


def stage_limits(changes: Mapping[str, int]) -> dict[str, int]:
    """The shipped limits with changes. Raises ConfigError for an unknown limit or a number below 1."""
    limits: dict[str, int] = read_yaml(FOLDER / "limits.yaml")
    for name, number in changes.items():
        if name not in limits:
            raise ConfigError(f"no stage takes of a limit {name!r}; limits are {', '.join(limits)}")
        if number < 1:
            raise ConfigError(f"limit {name}={number}: at least 1, or nothing would ever run")
    return {**limits, **changes}


def prefect_document(profile: str | None, pool: str, schedules: bool) -> dict[str, Any]:
    """prefect.yaml with another profile, work pool, or its schedules switched off."""
    document: dict[str, Any] = read_yaml(PREFECT_FILE)
    added = work_pools()[pool].get("overrides", [])
    for deployment in document["deployments"]:
        deployment["work_pool"] = {"name": pool}
        parameters = deployment["parameters"]
        if profile is not None and "profile" in parameters:
            parameters["profile"] = profile
        if "overrides" in parameters:
            parameters["overrides"] = [*added, *parameters["overrides"]]
        for schedule in deployment.get("schedules", ()):
            schedule["active"] = schedule.get("active", True) and schedules
    return document


def read_yaml(path: Path) -> Any:
    """The content of a shipped file. Raises ConfigError naming it if it is no YAML."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _flow_name(deployment: Mapping[str, Any]) -> str:
    return str(deployment["entrypoint"]).partition(":")[2].replace("_", "-")


def _create_pool(client: "SyncPrefectClient", settings: Mapping[str, Any]) -> None:
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    template["variables"]["properties"]["env"]["default"] = dict(settings["environment"])
    client.create_work_pool(
        WorkPoolCreate(
            name=settings["name"],
            type=settings["type"],
            description=settings["description"],
            concurrency_limit=settings["concurrency_limit"],
            base_job_template=template,
        ),
        overwrite=True,
    )


def _deploy(document: Mapping[str, Any]) -> None:
    """`prefect deploy --all`: it knows schedules, triggers and parameter schemas, and replaces what it made before."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        yaml.safe_dump(document, file, sort_keys=False)
        file.flush()
        command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", file.name]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"prefect deploy failed: {' '.join((result.stderr or result.stdout).split())[-600:]}")


def _automate(client: "SyncPrefectClient", path: Path) -> str:
    """Create or replace the automation of a file; returns its name."""
    from prefect.events.schemas.automations import AutomationCore

    automation = AutomationCore.model_validate(read_yaml(path))
    present = client.read_automations_by_name(automation.name)
    if present:
        client.update_automation(present[0].id, automation)
    else:
        client.create_automation(automation)
    return automation.name
