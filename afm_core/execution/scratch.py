"""Scratch folders of stage processes, below `$AFM_HOME/scratch`: gone with their process, however it ends.

A folder is named after host and process, so that a home on a shared file system never loses what another host's
process still needs.
"""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil


@contextmanager
def private_scratch(root: Path) -> Iterator[Path]:
    """This process's own folder for the block; what killed processes left is removed first."""
    sweep(root)
    private = root / f"{socket.gethostname()}-{os.getpid()}"
    private.mkdir(parents=True, exist_ok=True)
    try:
        yield private
    finally:
        shutil.rmtree(private, ignore_errors=True)


def sweep(root: Path) -> None:
    """Remove the folders of this host's processes that no longer run."""
    for folder in root.glob(f"{socket.gethostname()}-*"):
        number = folder.name.rpartition("-")[2]
        if number.isdigit() and not psutil.pid_exists(int(number)):
            shutil.rmtree(folder, ignore_errors=True)
