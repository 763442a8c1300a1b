"""Scratch folders: gone with their process, and never another's."""

import os
import socket
from contextlib import nullcontext
from pathlib import Path

import pytest

from afm_core.execution.scratch import private_scratch, sweep

HOST = socket.gethostname()
DEAD = 2**22 + 1  # above the largest process number of Linux


@pytest.mark.parametrize("fails", [False, True])
def test_a_process_leaves_nothing(tmp_path: Path, fails: bool) -> None:
    root = tmp_path / "scratch"
    with pytest.raises(ValueError, match="failed") if fails else nullcontext(), private_scratch(root) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").touch()
        assert folder.name == f"{HOST}-{os.getpid()}"
        if fails:
            raise ValueError("the stage failed")
    assert list(root.iterdir()) == []


def test_only_the_dead_of_this_host_are_swept(tmp_path: Path) -> None:
    kept = {f"{HOST}-{os.getpid()}", f"elsewhere-{DEAD}", f"{HOST}-notes"}
    for name in {*kept, f"{HOST}-{DEAD}"}:
        (tmp_path / name).mkdir()
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept
    sweep(tmp_path / "absent")
