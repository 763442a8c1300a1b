"""Ports: defaults, options, conflicts that name their holder; the short path for Ray; Postgres URLs."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from afm_core.config import ConfigError
from afm_core.services import ServiceName, ports, scratch
from afm_core.services.planning import plan_ports, with_needs
from afm_core.services.postgres import postgres_of
from afm_core.services.state import Places

ALL = set(ServiceName)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which this process listens."""
    with socket.socket() as listening:
        port = ports.choose(True, ())
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((ports.LOOPBACK, port))
        listening.listen()
        yield port


def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda port: True)


def test_the_known_ports_are_the_defaults_and_no_two_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch)
    plan = plan_ports(ALL, {}, {}, ())
    assert {name: plan[name] for name in ("prefect", "mlflow", "s3", "ray-dashboard")} == {
        "prefect": 4200,
        "mlflow": 5000,
        "s3": 8333,
        "ray-dashboard": 8265,
    }
    paired = [plan[name] + ports.PARTNER for name in plan if name.startswith("s3")]
    assert len({*plan.values(), *paired}) == len(plan) + len(paired)


def test_a_port_is_the_users_then_the_former_then_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch)
    plan = plan_ports(
        {ServiceName.PREFECT, ServiceName.MLFLOW}, {"prefect": 4300}, {"prefect": 4250, "mlflow": 5050}, ()
    )
    assert plan == {"prefect": 4300, "mlflow": 5050}


def test_a_port_in_use_is_named_with_its_holder_and_the_option(taken: int) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_ports({ServiceName.PREFECT}, {"prefect": taken}, {}, ())
    assert f"port {taken} of prefect is in use by process {os.getpid()} (" in str(caught.value)
    assert str(caught.value).endswith("choose another --prefect-port")


def test_the_second_port_of_the_s3_server_counts_too(taken: int) -> None:
    with pytest.raises(ConfigError, match=rf"port {taken} of s3 \(which it needs beside {taken - 10_000}\) is in use"):
        plan_ports({ServiceName.S3}, {"s3": taken - 10_000}, {}, ())
    with pytest.raises(ConfigError, match="at most 55535"):
        plan_ports({ServiceName.S3}, {"s3": 60_000}, {}, ())


def test_one_port_for_two_services_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch)
    with pytest.raises(ConfigError, match="port 5000 of prefect is asked for twice; choose another --prefect-port"):
        plan_ports({ServiceName.PREFECT, ServiceName.MLFLOW}, {"prefect": 5000}, {}, ())


def test_a_chosen_port_that_was_lost_is_exchanged(taken: int) -> None:
    plan = plan_ports({ServiceName.WORKER}, {}, {"worker": taken}, ())
    assert plan["worker"] != taken
    assert plan_ports({ServiceName.WORKER}, {}, plan, ()) == plan


def test_needs_come_along() -> None:
    assert with_needs([ServiceName.WORKER]) == {ServiceName.WORKER, ServiceName.PREFECT}
    assert with_needs([ServiceName.S3]) == {ServiceName.S3}


def test_rays_directory_has_a_short_path_and_its_logs_stay(tmp_path: Path) -> None:
    deep = Places(tmp_path / ("long" * 20))
    deep.make()
    path, made = scratch.ray_directory(deep, None)
    assert made is not None
    assert len(str(path)) < 30
    assert (Path(made).stat().st_mode & 0o777, path.resolve()) == (0o700, deep.data(ServiceName.RAY))
    for number in range(4):
        (path / f"session_2026-0{number}").mkdir()
    assert scratch.ray_directory(deep, made) == (path, made)
    assert sorted(one.name for one in deep.data(ServiceName.RAY).iterdir()) == ["session_2026-02", "session_2026-03"]
    scratch.remove(made)
    assert not Path(made).exists()
    assert deep.data(ServiceName.RAY).is_dir()


def test_a_home_with_a_short_path_needs_no_other_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    short = Places(Path("/srv/afm"))
    assert scratch.ray_directory(short, None) == (Path("/srv/afm/services/ray"), None)


@pytest.mark.parametrize(
    "text", ["mysql://me:secret@host/db", "secret", "postgresql:///db", "postgresql://me:secret@host:port/db"]
)
def test_what_is_no_postgres_url_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ConfigError, match="must be like postgresql://") as caught:
        postgres_of(text)
    assert "secret" not in str(caught.value)


def test_each_server_gets_its_driver_and_its_database() -> None:
    postgres = postgres_of("postgresql://me:p%40ss@db.example/main?sslmode=require")
    assert postgres is not None
    assert postgres.prefect == "postgresql+asyncpg://me:p%40ss@db.example/prefect?ssl=require"
    assert postgres.mlflow == "postgresql+psycopg2://me:p%40ss@db.example/mlflow?sslmode=require"
    assert (postgres.place, "p%40ss" in repr(postgres)) == ("me@db.example:5432", False)


def test_a_postgres_that_does_not_answer_is_named_without_its_password() -> None:
    postgres = postgres_of("postgresql://me:secret@127.0.0.1:9")
    assert postgres is not None
    with pytest.raises(ConfigError, match=r"Postgres at me@127\.0\.0\.1:9 cannot be used") as caught:
        postgres.make_databases()
    assert "secret" not in str(caught.value)
