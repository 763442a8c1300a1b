"""Runs the `sft` stage over plain directories: `python stage_process.py ROOT kill|run`.

With `kill` the process kills itself with SIGKILL once its first checkpoint is sealed.
"""

import os
import signal
import sys
from pathlib import Path

from afm_core.config.environment import silence_telemetry


def main(root: str, mode: str) -> None:
    silence_telemetry()
    from training_samples import FakeContext, run_config

    from afm_core.training.stages import sft

    class Killed(FakeContext):
        def seal(self, name: str, source: Path) -> None:
            super().seal(name, source)
            if mode == "kill":
                os.kill(os.getpid(), signal.SIGKILL)

    place = Path(root)
    inputs = {"base": place / "base" / "output", "demonstrations": place / "demonstrations"}
    sft(Killed(place / "sft", "sft", run_config(epochs=3, learning_rate=1e-3), inputs))


if __name__ == "__main__":
    main(*sys.argv[1:])
