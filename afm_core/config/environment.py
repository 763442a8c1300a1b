"""Quiet and lean libraries: no telemetry and no look-ups on a hub unless the user asked for them.

Call `silence_telemetry()` before Prefect, Ray, MLflow, vLLM or transformers are imported: most read their
switches once. Whatever the user has set is left alone, so `HF_HUB_OFFLINE=0 afm run ...` allows the hub
again. Child processes inherit the switches.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType

QUIET = MappingProxyType(
    {
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "GIT_PYTHON_REFRESH": "quiet",
    }
)
"""Environment variable -> value that turns telemetry, hub look-ups and start-up noise off."""

_UNUSED_IMPORTS = ("mlflow", "sklearn")
_FOLLOWS_HUB = ("HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")


def silence_telemetry() -> None:
    """Set every switch of QUIET that the user has not set. A user's HF_HUB_OFFLINE decides for its relatives
    too.
    """
    hub = os.environ.get("HF_HUB_OFFLINE")
    for name, value in QUIET.items():
        os.environ.setdefault(name, hub if hub is not None and name in _FOLLOWS_HUB else value)


@contextmanager
def lean_imports() -> Iterator[None]:
    """Hide what DeepSpeed (its autotuner) and transformers (a decoding method) import and no worker ever uses.

    They cost every worker five seconds of processor time and 110 MB. Afterwards they can be imported again.
    """
    hidden = [name for name in _UNUSED_IMPORTS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
