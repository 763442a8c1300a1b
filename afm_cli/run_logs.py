"""The log files of a run for the terminal: each part under its stage's name, once, as it grows."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from afm_core.execution import RunDirectory


class LogReader:
    """Prints what the logs of a run (or of one stage) have that was not printed yet."""

    def __init__(self, directory: "RunDirectory", stage: str | None) -> None:
        self._directory = directory
        self._stage = stage.replace(":", "-") if stage is not None else None
        self._read: dict[Path, int] = {}
        self._last: Path | None = None

    def print_new(self) -> None:
        """Print what is new. The part after the last line break waits for its end."""
        for path in sorted(self._directory.logs.glob("*.log")):
            if self._stage not in (None, path.stem):
                continue
            start = self._read.setdefault(path, 0)
            with path.open("rb") as stream:
                stream.seek(start)
                data = stream.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = start + len(whole)
            if path != self._last and (whole or not start):
                self._last = path
                click.echo(f"==> {path.stem} <==")
            if whole:
                click.echo(whole.decode("utf-8", errors="replace"), nl=False)

    def require_something(self) -> None:
        """Raise ConfigError if the stage that was asked for has no log."""
        from afm_core.config import ConfigError

        if self._stage is not None and not self._read:
            known = ", ".join(path.stem for path in sorted(self._directory.logs.glob("*.log")))
            raise ConfigError(
                f"run {self._directory.run_id} has no log of stage {self._stage!r}; there are: {known or 'none'}"
            )
