"""Where Ray jobs go: refused before the run when a job could not reach what it needs, and never told a secret."""

from pathlib import Path

import pytest

from afm_core.config import ConfigError, load_config
from afm_core.execution import RunSession
from afm_core.execution.ray_job import cause_of_death, job_id
from afm_core.execution.ray_target import RayTarget, ray_target

JOB = ("execution.runner=ray_job",)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AFM_RAY_DASHBOARD", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


def target(*overrides: str, store: str = "s3://bucket/prefix") -> RayTarget | None:
    return ray_target(load_config("smoke", None, (*JOB, *overrides)), store)


def test_the_default_runner_needs_no_cluster() -> None:
    assert ray_target(load_config("smoke"), "/store") is None


@pytest.mark.parametrize(
    ("overrides", "store", "told"),
    [
        ((), "s3://bucket/x", "set execution.ray_dashboard"),
        (("execution.ray_dashboard=http://10.0.0.7:8265",), "/store", "is a directory of this machine"),
        (("execution.ray_dashboard=http://head:8265",), "file:///store", "is a directory of this machine"),
        (("execution.ray_dashboard=http://head:8265",), "s3://bucket/x", "is a file of this machine"),
    ],
)
def test_what_a_job_could_not_reach_is_refused(overrides: tuple[str, ...], store: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        target(*overrides, store=store)


def test_a_refused_run_leaves_no_record_and_no_store(own_home: Path) -> None:
    with pytest.raises(ConfigError, match="AFM_RAY_DASHBOARD"):
        RunSession(load_config("smoke", None, JOB), "a-run")
    assert not own_home.exists()


@pytest.mark.parametrize("address", ["http://127.0.0.1:8265/", "localhost:8265", "http://[::1]:8265"])
def test_a_cluster_on_loopback_is_this_machine(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFM_RAY_DASHBOARD", address)
    here = target(store="/a/directory")
    assert here is not None
    assert here.is_local
    assert here.job_url("a").endswith(":8265/#/jobs/a")


def test_no_secret_is_told_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "AWS_SECRET_ACCESS_KEY": "secret-1",
        "AWS_SESSION_TOKEN": "secret-2",
        "RAY_AUTH_TOKEN": "secret-3",
        "MLFLOW_TRACKING_URI": "http://me:secret-4@mlflow",
        "AWS_ACCESS_KEY_ID": "secret-5",
        "PREFECT_API_KEY": "secret-6",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    config = load_config("smoke", None, (*JOB, "execution.ray_dashboard=http://127.0.0.1:1"))
    here = ray_target(config, "/store")
    assert here is not None
    told = str(here.environment(config, Path("/home"))) + here.entrypoint("s3://bucket/spec.json")
    assert "secret" not in told
    assert "'AFM_HOME': '/home'" in told


def test_the_id_of_an_attempt_stands_in_urls() -> None:
    assert job_id("20261130-120000-ab12", "evaluate:policy:rl", 2) == "20261130-120000-ab12-evaluate-policy-rl-2"
    assert job_id("a run/of mine", "sft", 1) == "a-run-of-mine-sft-1"


def info(**fields: object) -> object:
    from ray.job_submission import JobDetails

    given = {"type": "SUBMISSION", "submission_id": "j", "entrypoint": "e", "status": "FAILED", **fields}
    return JobDetails.model_validate(given) if hasattr(JobDetails, "model_validate") else JobDetails(**given)


@pytest.mark.parametrize(
    ("fields", "told", "kind"),
    [
        ({"driver_exit_code": 7}, "exit code 7", "died"),
        ({"driver_exit_code": -9}, "SIGKILL (as the kernel does when its node is out of memory)", "died"),
        ({"driver_exit_code": 143}, "SIGTERM", "died"),
        ({"status": "STOPPED"}, "stopped by somebody else", "interrupted"),
        (
            {
                "message": "Job supervisor actor died: ... running low on memory",
                "error_type": "JOB_SUPERVISOR_ACTOR_DIED",
            },
            "its node ran out of memory",
            "infrastructure",
        ),
        ({"error_type": "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE"}, "ray_job_cpus", "configuration"),
    ],
)
def test_the_cause_of_death_is_one_line(fields: dict[str, object], told: str, kind: str) -> None:
    death = cause_of_death(info(**fields), asked=False)  # type: ignore[arg-type]
    assert told in str(death)
    assert "\n" not in str(death)
    assert death.kind == kind
