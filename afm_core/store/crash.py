"""Named points at which a test kills this process and its group, to prove that any instant is survivable.

`AFM_CRASH_AT=before_manifest` kills at the first arrival, `AFM_CRASH_AT=during_checkpoint:2` at the second.
"""

import os
import signal
from collections import Counter
from typing import Literal, get_args

CrashPoint = Literal["before_data", "before_manifest", "before_pointer", "during_checkpoint", "during_heartbeat"]
CRASH_POINTS: tuple[str, ...] = get_args(CrashPoint)

_arrivals: Counter[str] = Counter()


def crash_point(name: CrashPoint) -> None:
    """Kill the own process group with SIGKILL if `$AFM_CRASH_AT` names this point (and this arrival)."""
    wanted, _, arrival = os.environ.get("AFM_CRASH_AT", "").partition(":")
    if wanted != name:
        return
    _arrivals[name] += 1
    if _arrivals[name] >= int(arrival or 1):
        os.killpg(os.getpgrp(), signal.SIGKILL)
