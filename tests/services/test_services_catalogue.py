"""Commands hold no secret, servers see none of the user's settings, and what runs the user's work sees all of them."""

from pathlib import Path

import pytest

from afm_core.config.environment import OWN_CHOICES
from afm_core.services import Options, ServiceName
from afm_core.services.catalogue import CATALOGUE, Setup
from afm_core.services.client import credentials_of, variables_of
from afm_core.services.planning import plan_ports
from afm_core.services.postgres import postgres_of
from afm_core.services.state import Places

SERVERS = (ServiceName.PREFECT, ServiceName.MLFLOW, ServiceName.S3)


@pytest.fixture
def setup(places: Places, monkeypatch: pytest.MonkeyPatch) -> Setup:
    """All services on free ports and on Postgres, for a user who has settings for other servers."""
    for name in (name for names in OWN_CHOICES.values() for name in names):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("afm_core.services.ports.is_free", lambda port: True)
    ports = plan_ports(set(ServiceName), {}, {}, ())
    credentials, _ = credentials_of({})
    joined = {name: variables_of(name, ports, credentials) for name in ServiceName}
    postgres = postgres_of("postgresql://me:password-of-mine@db.example")
    return Setup(places, Options(), ports, credentials, joined, Path("/tmp/ray"), postgres)


@pytest.mark.parametrize("name", ServiceName)
def test_a_command_line_holds_no_secret_and_only_loopback(setup: Setup, name: ServiceName) -> None:
    command = " ".join(CATALOGUE[name].command(setup))
    keys = setup.credentials
    assert not [one for one in (keys.access_key, keys.secret_key, keys.ray_token, "password-of-mine") if one in command]
    assert "0.0.0.0" not in command


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_sees_none_of_the_users_servers(
    setup: Setup, name: ServiceName, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "AWS_PROFILE", "RAY_ADDRESS", "AFM_STORE", "UVICORN_PORT")
    for variable in mine:
        monkeypatch.setenv(variable, "of mine")
    monkeypatch.setenv("LANG", "of mine too")
    environment = CATALOGUE[name].environment(setup)
    assert [variable for variable in mine if environment.get(variable) == "of mine"] == []
    assert environment["LANG"] == "of mine too"
    assert environment["DO_NOT_TRACK"] == "1"


@pytest.mark.parametrize("name", [ServiceName.WORKER, ServiceName.RAY])
def test_the_users_work_joins_the_stack_as_every_command_does(
    setup: Setup, name: ServiceName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.example")
    monkeypatch.setenv("RAY_ADDRESS", "ray.example:6379")
    environment = CATALOGUE[name].environment(setup)
    assert environment["MLFLOW_TRACKING_URI"] == "http://mlflow.example"
    assert environment["AFM_STORE"] == "s3://artifacts/afm"
    assert environment["AWS_ACCESS_KEY_ID"] == setup.credentials.access_key
    assert environment["AFM_HOME"] == str(setup.places.home)
    if name is ServiceName.RAY:  # a head that is told of another cluster's address would not be this one
        assert "RAY_ADDRESS" not in environment
        assert environment["RAY_AUTH_TOKEN"] == setup.credentials.ray_token
    else:
        assert environment["RAY_ADDRESS"] == "ray.example:6379"
        assert "RAY_AUTH_TOKEN" not in environment


def test_the_worker_serves_this_stack_whatever_the_users_profile_says(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://prefect.example/api")
    monkeypatch.setenv("PREFECT_PROFILE", "another")
    environment = CATALOGUE[ServiceName.WORKER].environment(setup)
    assert environment["PREFECT_API_URL"] == setup.url("prefect") + "/api"
    assert "PREFECT_PROFILE" not in environment


def test_the_databases_are_where_they_were_asked_for(setup: Setup) -> None:
    prefect, mlflow = (CATALOGUE[name].environment(setup) for name in (ServiceName.PREFECT, ServiceName.MLFLOW))
    assert prefect["PREFECT_SERVER_DATABASE_CONNECTION_URL"].endswith("@db.example/prefect")
    assert mlflow["MLFLOW_BACKEND_STORE_URI"].endswith("@db.example/mlflow")
