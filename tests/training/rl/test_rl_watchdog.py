"""The watchdog: a hang ends, with the place where it stood."""

import subprocess
import sys
from pathlib import Path

from afm_core.training.errors import TrainingWorkerDied
from afm_core.training.rl.watchdog import Watchdog, explained

HANGS = """
import sys, time
from pathlib import Path
from afm_core.training.rl.watchdog import Watchdog
dog = Watchdog(Path(sys.argv[1]), 0.2)
def stuck_in_a_collective():
    time.sleep(60)
stuck_in_a_collective()
"""


def test_ms_swift_6962_a_hang_ends_with_every_stack(tmp_path: Path) -> None:
    stacks = tmp_path / "stacks.txt"
    done = subprocess.run([sys.executable, "-c", HANGS, str(stacks)], timeout=60, check=False)
    assert done.returncode == 1
    assert "stuck_in_a_collective" in stacks.read_text()
    error = explained(TrainingWorkerDied("worker 0 died"), stacks)
    assert "no progress within rollout.stall_seconds" in str(error)


def test_another_death_keeps_its_own_words(tmp_path: Path) -> None:
    stacks = tmp_path / "stacks.txt"
    error = TrainingWorkerDied("worker 0 died: out of memory")
    assert explained(error, stacks) is error
    Watchdog(stacks, 60).close()
    assert explained(error, stacks) is error
