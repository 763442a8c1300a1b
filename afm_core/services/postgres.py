"""Postgres instead of SQLite for Prefect and MLflow: two databases on a server of the user's, made if absent.

The URL holds a password: it goes into the environment of the two servers and is written nowhere.
"""

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from afm_core.config import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import URL

VARIABLE = "AFM_POSTGRES_URL"
_DATABASES = ("prefect", "mlflow")


@dataclass(frozen=True)
class Postgres:
    """A Postgres server that the user named."""

    _url: "URL" = field(repr=False)

    @property
    def place(self) -> str:
        """Where it is, without the password."""
        return f"{self._url.username or ''}@{self._url.host}:{self._url.port or 5432}"

    @property
    def prefect(self) -> str:
        """Secret URL for Prefect's driver, which calls `sslmode` otherwise."""
        query = {("ssl" if key == "sslmode" else key): value for key, value in self._url.query.items()}
        return self._with("postgresql+asyncpg", "prefect").set(query=query).render_as_string(hide_password=False)

    @property
    def mlflow(self) -> str:
        """Secret URL for MLflow's driver."""
        return self._with("postgresql+psycopg2", "mlflow").render_as_string(hide_password=False)

    def _with(self, driver: str, database: str) -> "URL":
        return self._url.set(drivername=driver, database=database)

    def make_databases(self) -> None:
        """Make the two databases if they are not there.

        Raises:
            ConfigError: the server does not answer or refuses.
        """
        try:
            import psycopg2
        except ImportError as error:
            raise ConfigError("Postgres needs the package psycopg2-binary: install the extra `services`") from error
        address = self._with("postgresql", self._url.database or "postgres").render_as_string(hide_password=False)
        try:
            connection = psycopg2.connect(address, connect_timeout=10)
            try:
                connection.autocommit = True
                for name in _DATABASES:
                    with connection.cursor() as cursor:
                        cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
                        if cursor.fetchone() is None:
                            cursor.execute(f'CREATE DATABASE "{name}"')
            finally:
                connection.close()
        except psycopg2.errors.InsufficientPrivilege as error:
            names = " and ".join(_DATABASES)
            raise ConfigError(f"the user of {self.place} may not make databases: make {names} for it") from error
        except psycopg2.Error as error:
            detail = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(f"the Postgres at {self.place} cannot be used: {detail}") from error


def postgres_of(option: str | None) -> Postgres | None:
    """The server of the option, else of $AFM_POSTGRES_URL; None if neither is given.

    Raises:
        ConfigError: not the URL of a Postgres server.
    """
    text = option or os.environ.get(VARIABLE)
    if not text:
        return None
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        url = None
    if url is None or url.drivername.partition("+")[0] not in ("postgresql", "postgres") or not url.host:
        raise ConfigError(f"--postgres or {VARIABLE} must be like postgresql://user:password@host:5432")
    return Postgres(url)
