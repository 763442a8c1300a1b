"""Fixtures of the services' tests: small real servers in the place of the big ones."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from small_servers import SERVER, processes_of

from afm_core.services import ServiceName, health, processes, scratch
from afm_core.services.catalogue import CATALOGUE, Port, Setup
from afm_core.services.state import Places


@pytest.fixture
def places(own_home: Path) -> Places:
    """The directories of an `afm up` in this test's home."""
    places = Places(own_home)
    places.make()
    return places


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, own_home: Path) -> Iterator[dict[ServiceName, str]]:
    """Every service is a tiny HTTP server with the ports (all chosen) and needs of the real one.

    Its program can be replaced. Whatever carries the mark of a stack of this home is killed in the end.
    """
    programs = dict.fromkeys(ServiceName, SERVER)
    for name, service in list(CATALOGUE.items()):
        port = next(iter(service.ports))

        def command(setup: Setup, name: ServiceName = name, port: str = port) -> list[str]:
            return [sys.executable, "-S", "-E", "-c", programs[name], str(setup.ports[port])]

        small = replace(
            service,
            command=command,
            environment=lambda setup: {"HOME_OF_TEST": str(own_home)},
            check=lambda setup, port=port: health.http(setup.url(port)),
            url=lambda setup, port=port: setup.url(port),
            ports=dict.fromkeys(service.ports, Port()),
            grace=0.5,
        )
        monkeypatch.setitem(CATALOGUE, name, small)
    monkeypatch.setattr(processes, "_REST_SECONDS", 0.2)
    monkeypatch.setattr(scratch, "ray_directory", lambda places, made: (places.root, None))
    yield programs
    for process in processes_of(own_home):
        process.kill()
