"""A real MLflow on a SQLite file: built once, copied for every test."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from afm_core.tracking.client import open_client

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    open_client(f"sqlite:///{path}")
    return path


@pytest.fixture
def mlflow_uri(empty_database: Path, tmp_path: Path) -> str:
    """The URI of a fresh database."""
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"
