"""Reaching MLflow: which server or file, and a client for it. MLflow is imported only here, and only when
needed.

Without configuration it is a SQLite file below `$AFM_HOME`. Two processes that open a new file at once would
both build its tables, so the first opening is done under a file lock.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from afm_core.config import ConfigError, TrackingConfig, home
from afm_core.config.environment import silence_telemetry

if TYPE_CHECKING:
    from mlflow import MlflowClient

_SQLITE = "sqlite:///"


class TrackingError(OSError):
    """MLflow did not do what was asked, after retries: an infrastructure fault, worth another attempt later."""


def tracking_uri(config: TrackingConfig) -> str:
    """The configured URI, else MLFLOW_TRACKING_URI, else `sqlite:///$AFM_HOME/mlflow.db`."""
    return config.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}{home() / 'mlflow.db'}"


def tracking_file(config: TrackingConfig) -> str | None:
    """The URI of the database that metrics go to without a server; None: a server has them, or nothing is tracked."""
    uri = tracking_uri(config)
    return None if not config.enabled or uri.startswith(("http://", "https://")) else uri


def open_client(uri: str) -> "MlflowClient":
    """A client whose database exists and answers.

    Raises:
        ConfigError: MLflow knows no such kind of URI. TrackingError: it does not answer.
    """
    silence_telemetry()
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    import logging

    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    for chatty in ("alembic", "mlflow.store.db.utils"):  # after the import, which sets levels of its own
        logging.getLogger(chatty).setLevel(logging.WARNING)

    with _first_opening(uri):
        try:
            client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            client.search_experiments(max_results=1)
        except (MlflowException, SQLAlchemyError, OSError) as error:
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            if "unsupported URI" in text or ("registered" in text and "store" in text):
                raise ConfigError(f"tracking.uri {uri!r}: {text}; use sqlite:///FILE or http://SERVER") from error
            raise TrackingError(f"MLflow at {uri} does not answer: {text}") from error
    return client


def is_absent(uri: str) -> bool:
    """Whether the URI is a SQLite file that nobody has made yet: asking it would make it."""
    return uri.startswith(_SQLITE) and not Path(uri.removeprefix(_SQLITE)).exists()


def database_identity(uri: str) -> str:
    """Tells a database from a later one at the same place (a deleted and recreated file)."""
    try:
        return f"{uri}#{Path(uri.removeprefix(_SQLITE)).stat().st_ino}" if uri.startswith(_SQLITE) else uri
    except OSError:
        return f"{uri}#absent"


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Exclusive across processes; released by the kernel if the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextmanager
def _first_opening(uri: str) -> Iterator[None]:
    if not uri.startswith(_SQLITE):
        yield
        return
    file = Path(uri.removeprefix(_SQLITE))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(file.with_name(f"{file.name}.lock")):
            yield
    except PermissionError as error:
        raise ConfigError(f"tracking.uri {uri!r}: cannot be written ({error.strerror})") from error
