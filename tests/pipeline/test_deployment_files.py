"""What is shipped for machines that cannot be had here: it parses, has its required fields, and is open to nobody."""

import configparser
import re
from pathlib import Path

import pytest
import yaml

from afm_core.config import ConfigError
from afm_core.execution.stages import STAGES
from flows.deployment import ROOT, prefect_document, read_yaml, stage_limits, work_pools
from tasks.limits import TAKES, limits_of

FOLDER = ROOT / "deployments"
MANIFESTS = [
    (path.name, document)
    for path in sorted((FOLDER / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
SECRET = re.compile("(password|secret|token|auth_string)", re.IGNORECASE)


def containers(document: dict) -> list[dict]:
    """Every container below a Kubernetes manifest."""
    if isinstance(document, list):
        return [one for item in document for one in containers(item)]
    if not isinstance(document, dict):
        return []
    return [*document.get("containers", []), *(one for value in document.values() for one in containers(value))]


@pytest.mark.parametrize(("file", "document"), MANIFESTS)
def test_a_manifest_names_itself_and_its_part(file: str, document: dict) -> None:
    assert document["apiVersion"]
    assert document["kind"]
    assert document["metadata"]["name"]
    for container in containers(document):
        assert container["name"]
        assert container["image"]
        assert set(container["resources"]) == {"limits", "requests"}


@pytest.mark.parametrize(("file", "document"), MANIFESTS)
def test_no_secret_stands_in_a_manifest(file: str, document: dict) -> None:
    for container in containers(document):
        for variable in container.get("env", []):
            assert "valueFrom" in variable or not SECRET.search(variable["name"]) or variable["value"] == "token"


def test_the_ray_cluster_asks_for_a_token_and_its_pods_are_behind_the_policy() -> None:
    cluster = next(document for _, document in MANIFESTS if document["kind"] == "RayCluster")
    spec = cluster["spec"]
    assert spec["authOptions"] == {"mode": "token"}
    assert tuple(map(int, spec["rayVersion"].split("."))) >= (2, 52, 0)
    assert (
        f"ray[data,train,default]=={'.'.join(spec['rayVersion'].split('.')[:2])}."
        in (ROOT / "pyproject.toml").read_text()
    )
    policies = [document["spec"] for _, document in MANIFESTS if document["kind"] == "NetworkPolicy"]
    guarded = [policy["podSelector"]["matchLabels"] for policy in policies]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        labels = group["template"]["metadata"]["labels"]
        assert any(selector.items() <= labels.items() for selector in guarded)
    assert spec["headGroupSpec"]["serviceType"] == "ClusterIP"
    for policy in policies:
        assert policy["policyTypes"] == ["Ingress"]
        assert all(rule["from"] for rule in policy["ingress"])


def test_a_plain_ray_cluster_has_what_ray_requires_and_takes_the_token_from_the_environment() -> None:
    cluster = read_yaml(FOLDER / "ray" / "cluster.yaml")
    assert {"cluster_name", "provider", "auth", "head_start_ray_commands", "worker_start_ray_commands"} <= set(cluster)
    assert {"type", "head_ip", "worker_ips"} <= set(cluster["provider"])
    for commands in (cluster["head_start_ray_commands"], cluster["worker_start_ray_commands"]):
        start = commands[-1]
        assert "RAY_AUTH_MODE=token" in start
        assert "${RAY_AUTH_TOKEN:?" in start
        assert "dashboard-host=127.0.0.1" in start or "--head" not in start


def test_the_servers_of_a_team_publish_on_loopback_only_and_ask_for_passwords() -> None:
    services = read_yaml(FOLDER / "compose.yaml")["services"]
    assert set(services) == {"postgres", "s3", "prefect", "mlflow"}
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        for name, value in service["environment"].items():
            assert not SECRET.search(name) or value.startswith("${")
    assert "PREFECT_SERVER_API_AUTH_STRING" in services["prefect"]["environment"]
    assert "--app-name basic-auth" in services["mlflow"]["command"]
    example = (FOLDER / "servers.env.example").read_text()
    asked = set(re.findall(r"\$\{(\w+)", (FOLDER / "compose.yaml").read_text()))
    assert asked == set(re.findall(r"^(\w+)=$", example, re.MULTILINE))


def test_the_image_runs_as_an_ordinary_user_with_the_pinned_packages() -> None:
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    steps = [line.split()[0] for line in lines if re.match("[A-Z]+ ", line)]
    assert steps.index("FROM") < steps.index("USER") < steps.index("ENTRYPOINT")
    assert next(line for line in lines if line.startswith("USER")).split()[1] != "root"
    assert any(line.startswith("COPY") and "constraints.txt" in line for line in lines)


def test_the_unit_restarts_its_worker_and_holds_no_secret() -> None:
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(FOLDER / "systemd" / "afm-worker.service")
    service = unit["Service"]
    assert service["ExecStart"].endswith("prefect worker start --pool local")
    assert service["Restart"] == "always"
    assert service["EnvironmentFile"]
    assert not SECRET.search(service["Environment"])


@pytest.mark.parametrize("path", sorted((FOLDER / "automations").glob("*.yaml")), ids=lambda path: path.stem)
def test_an_automation_is_one_that_prefect_takes(path: Path) -> None:
    from prefect.events.schemas.automations import AutomationCore

    automation = AutomationCore.model_validate(read_yaml(path))
    assert automation.name.startswith("afm-")
    assert automation.actions


def test_stages_take_of_the_limits_that_there_are() -> None:
    assert {limit for name in STAGES for limit in limits_of(name)} == set(stage_limits({}))
    assert set(TAKES) <= set(STAGES)
    assert stage_limits({"gpu": 8})["gpu"] == 8
    with pytest.raises(ConfigError, match="no stage takes of a limit 'tpu'"):
        stage_limits({"tpu": 1})
    with pytest.raises(ConfigError, match="at least 1"):
        stage_limits({"gpu": 0})


def test_deployments_for_a_ray_pool_submit_jobs() -> None:
    assert set(work_pools()) == {"local", "ray"}
    for deployment in prefect_document("smoke", "ray", schedules=False)["deployments"]:
        assert deployment["work_pool"] == {"name": "ray"}
        assert deployment["parameters"].get("profile", "smoke") == "smoke"
        assert "execution.runner=ray_job" in deployment["parameters"].get("overrides", ["execution.runner=ray_job"])
        assert not any(schedule["active"] for schedule in deployment.get("schedules", []))
