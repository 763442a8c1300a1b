"""A short path to Ray's directory: Ray keeps Unix sockets in it, whose paths the system limits to 107 bytes."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from afm_core.services.state import Places, ServiceName

_LONGEST = 107 - len("/session_2026-11-30_22-00-00_123456_1234567/sockets/plasma_store")
_PREFIX = "afm-"
_LINK = "ray"
_SESSIONS_KEPT = 3


def ray_directory(places: Places, scratch: str | None) -> tuple[Path, str | None]:
    """A path to Ray's data that is short enough, and the directory outside the home that was made for it, if any.

    scratch: the one that was made before.
    """
    data = places.data(ServiceName.RAY)
    _prune(data)
    if len(os.fsencode(data)) <= _LONGEST:
        return data, None
    directory = Path(scratch) if scratch else None
    if directory is None or not directory.is_dir():
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
    link = directory / _LINK
    with suppress(FileNotFoundError):
        link.unlink()
    link.symlink_to(data)
    return link, str(directory)


def remove(scratch: str | None) -> None:
    """Remove the directory that `ray_directory` made; what the link points to stays."""
    if scratch is None or not Path(scratch).name.startswith(_PREFIX):
        return
    with suppress(OSError):
        (Path(scratch) / _LINK).unlink()
        Path(scratch).rmdir()


def _prune(data: Path) -> None:
    """Keep the logs of the last sessions only."""
    import shutil

    sessions = sorted(path for path in data.glob("session_2*") if path.is_dir())
    for path in sessions[: -_SESSIONS_KEPT + 1]:
        shutil.rmtree(path, ignore_errors=True)
