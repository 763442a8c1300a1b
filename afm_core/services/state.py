"""What `afm up` keeps below `$AFM_HOME/services`: the record of the servers it started, and who may change it.

The record names each server's process so exactly (number, start time, boot of the machine) that no other process can
be taken for it. It holds no secret.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from afm_core.config import ConfigError
from afm_core.config.environment import SERVICES_ENVIRONMENT


class ServiceName(StrEnum):
    """The servers of the stack."""

    PREFECT = "prefect"
    WORKER = "worker"
    MLFLOW = "mlflow"
    S3 = "s3"
    RAY = "ray"


class ServiceState(StrEnum):
    """running: alive and healthy; unhealthy: alive, but its check fails; dead: its process is gone."""

    RUNNING = "running"
    UNHEALTHY = "unhealthy"
    DEAD = "dead"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ServiceRecord(_Record):
    """One started server.

    pid, start: its first process and when that started, in the kernel's ticks since boot (see processes.start_of).
    ports: by their names in the catalogue.
    joined: digest of the stack's variables that it was started with; empty where it uses none.
    """

    pid: int = Field(gt=1)
    start: float
    ports: dict[str, int]
    since: str
    joined: str = ""


class StackRecord(_Record):
    """The servers of one home.

    stack: random name; every process of the stack carries it in its environment.
    postgres: where Prefect and MLflow keep their data (no password), or None for SQLite.
    scratch: directory outside the home that `down` removes, or None.
    """

    version: Literal[1] = 1
    home: str
    boot_id: str
    stack: str
    postgres: str | None = None
    scratch: str | None = None
    services: dict[ServiceName, ServiceRecord] = {}


@dataclass(frozen=True)
class Places:
    """Paths below `$AFM_HOME/services`."""

    home: Path

    @property
    def root(self) -> Path:
        return self.home / "services"

    @property
    def record(self) -> Path:
        return self.root / "services.json"

    @property
    def environment(self) -> Path:
        return self.home / SERVICES_ENVIRONMENT

    def log(self, name: ServiceName) -> Path:
        return self.root / "logs" / f"{name}.log"

    def data(self, name: ServiceName) -> Path:
        return self.root / name

    def make(self) -> None:
        """Make the directories; nobody else may look into them."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        for path in (self.root / "logs", *(self.data(name) for name in ServiceName if name is not ServiceName.WORKER)):
            path.mkdir(exist_ok=True)


def load_record(places: Places) -> StackRecord | None:
    """The record, or None if there is none or it is a copy of another home's.

    Raises:
        ConfigError: the file is not what `afm up` writes.
    """
    try:
        record = StackRecord.model_validate_json(places.record.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {places.record}: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"{places.record} is not a record of `afm up` ({f'{where}: ' if where else ''}{first['msg']}); "
            "delete it once no server of it runs"
        ) from error
    return record if record.home == str(places.home) else None


def save_record(places: Places, record: StackRecord) -> None:
    """Replace the record atomically."""
    write_private(places.record, record.model_dump_json(indent=2))


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically, mode 0600 from its first byte on."""
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


@contextmanager
def locked(places: Places, on_wait: Callable[[], None]) -> Iterator[None]:
    """Only one `afm up` or `afm down` at a time; `on_wait` is called before waiting for another one."""
    places.root.mkdir(parents=True, exist_ok=True)
    with (places.root / "lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
