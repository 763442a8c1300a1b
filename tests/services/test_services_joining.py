"""Every `afm` command uses the running services of its home, and the user's own environment wins."""

import json
import os
from pathlib import Path

import pytest

from afm_core.config import ConfigError
from afm_core.config.environment import OWN_CHOICES, SERVICES_ENVIRONMENT, join_services, own_choices
from afm_core.services import ServiceName
from afm_core.services.client import credentials_of, variables_of, write_environment
from afm_core.services.state import Places

PORTS = {"prefect": 1, "mlflow": 2, "s3": 3, "ray": 4, "ray-dashboard": 5}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, places: Places) -> dict[str, str]:
    """No variable of a service is set; the file of a running stack lies in the home. Returns its variables."""
    credentials, _ = credentials_of({})
    services = {name: variables_of(name, PORTS, credentials) for name in ServiceName}
    variables = {key: value for one in services.values() for key, value in one.items()}
    for name in {*variables, *(name for names in OWN_CHOICES.values() for name in names)}:
        monkeypatch.setenv(name, "restored afterwards")
        monkeypatch.delenv(name)
    write_environment(places, services)
    return variables


def joined(home: Path, names: dict[str, str]) -> dict[str, str]:
    join_services(home)
    return {name: os.environ[name] for name in names if name in os.environ}


def test_a_bare_environment_gets_everything(own_home: Path, bare: dict[str, str]) -> None:
    assert joined(own_home, bare) == bare
    assert bare["PREFECT_API_URL"] == "http://127.0.0.1:1/api"
    assert bare["AFM_STORE"] == "s3://artifacts/afm"
    assert bare["RAY_ADDRESS"] == "127.0.0.1:4"


def test_the_file_is_private_and_whole(places: Places) -> None:
    assert places.environment.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in places.root.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("variable", ["AFM_STORE", "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_ENDPOINT_URL_S3"])
def test_s3_comes_whole_or_not_at_all(
    own_home: Path, bare: dict[str, str], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """The stack's credentials for the user's bucket, or the other way round, would fail or leak."""
    monkeypatch.setenv(variable, "mine")
    after = joined(own_home, bare)
    assert {name: value for name, value in after.items() if name.startswith(("AWS_", "AFM_STORE"))} == (
        {variable: "mine"} if variable in bare else {}
    )
    assert after["PREFECT_API_URL"] == bare["PREFECT_API_URL"]
    assert own_choices()["s3"] == variable


def test_the_users_ray_is_not_given_the_stacks_token(
    own_home: Path, bare: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray.example:6379")
    after = joined(own_home, bare)
    assert {name: after[name] for name in after if "RAY" in name} == {"RAY_ADDRESS": "ray.example:6379"}


def test_a_region_of_the_users_own_stays(own_home: Path, bare: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert joined(own_home, bare) == bare | {"AWS_DEFAULT_REGION": "eu-north-1"}


@pytest.mark.parametrize("change", [{"boot_id": "another boot"}, {"home": "/another/home"}])
def test_a_file_from_before_a_reboot_or_of_a_copied_home_is_ignored(
    places: Places, bare: dict[str, str], change: dict[str, str]
) -> None:
    places.environment.write_text(json.dumps(json.loads(places.environment.read_text()) | change))
    assert joined(places.home, bare) == {}


def test_an_empty_variable_is_no_choice(own_home: Path, bare: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "")
    monkeypatch.setenv("AWS_PROFILE", "")
    assert joined(own_home, bare) == bare


def test_no_file_no_services(own_home: Path, bare: dict[str, str]) -> None:
    (own_home / SERVICES_ENVIRONMENT).unlink()
    assert joined(own_home, bare) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"services": 3}', '{"services": {"s3": "x"}}'])
def test_a_damaged_file_is_named(places: Places, text: str) -> None:
    places.environment.write_text(text)
    with pytest.raises(ConfigError, match=r"services/environment\.json"):
        join_services(places.home)


def test_credentials_are_kept_while_their_servers_run_and_made_otherwise() -> None:
    first, new = credentials_of({})
    assert new == {ServiceName.S3, ServiceName.RAY}
    again, new = credentials_of({name: variables_of(name, PORTS, first) for name in ServiceName})
    assert (again, new) == (first, set())
    other, new = credentials_of({"ray": variables_of(ServiceName.RAY, PORTS, first)})
    assert new == {ServiceName.S3}
    assert (other.ray_token, other.secret_key == first.secret_key) == (first.ray_token, False)
    assert first.secret_key not in repr(first)
