"""The environment of this process and its children: quiet, lean libraries, and the services of `afm up`.

Call `silence_telemetry()` and `join_services()` before Prefect, Ray, MLflow, vLLM or transformers are imported: most
read their variables once. Whatever the user has set is left alone, so `HF_HUB_OFFLINE=0 afm run ...` allows the hub
again, and `PREFECT_API_URL=... afm run` reports to that server. Child processes inherit the variables.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from afm_core.config.errors import ConfigError

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

SERVICES_ENVIRONMENT = Path("services", "environment.json")
"""Below `$AFM_HOME`: what a client of the running services needs. Mode 0600; `afm down` removes it."""

OWN_CHOICES = MappingProxyType(
    {
        "prefect": ("PREFECT_API_URL",),
        "mlflow": ("MLFLOW_TRACKING_URI",),
        "s3": (
            "AFM_STORE",
            "AWS_ENDPOINT_URL",
            "AWS_ENDPOINT_URL_S3",
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "AWS_PROFILE",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
        ),
        "ray": ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "AFM_RAY_DASHBOARD"),
    }
)
"""Service -> variables of which any one, set by the user, says "I use another": credentials and addresses belong
together, so that none of that service's variables is set then."""

_UNUSED_IMPORTS = ("mlflow", "sklearn")
_FOLLOWS_HUB = ("HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")


def silence_telemetry() -> None:
    """Set every switch of QUIET that the user has not set. A user's HF_HUB_OFFLINE decides for its relatives
    too.
    """
    hub = os.environ.get("HF_HUB_OFFLINE")
    for name, value in QUIET.items():
        os.environ.setdefault(name, hub if hub is not None and name in _FOLLOWS_HUB else value)


def join_services(home: Path) -> None:
    """Use the services that `afm up` started for this home, if any: set their variables where the user set none.

    Raises:
        ConfigError: the file of their variables is damaged.
    """
    services = read_services_environment(home / SERVICES_ENVIRONMENT)
    for name in services.keys() - own_choices().keys():
        for variable, value in services[name].items():
            if not os.environ.get(variable):  # empty is unset, for those who read it
                os.environ[variable] = value


def own_choices() -> dict[str, str]:
    """Service -> the variable by which the user has chosen another one."""
    found = {name: [one for one in variables if os.environ.get(one)] for name, variables in OWN_CHOICES.items()}
    return {name: variables[0] for name, variables in found.items() if variables}


def read_services_environment(path: Path) -> Mapping[str, Mapping[str, str]]:
    """Service -> its variables; nothing if no services run: no file, one of another home, or from before a reboot.

    Raises:
        ConfigError: the file is not what `afm up` writes.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path} ({error}); `afm up` writes it anew") from error
    services = document.get("services") if isinstance(document, dict) else None
    if not isinstance(services, dict) or not all(isinstance(one, dict) for one in services.values()):
        raise ConfigError(f"{path} is not a file of `afm up`, which would write it anew")
    if document.get("boot_id") != boot_id() or document.get("home") != str(path.parents[1]):
        return {}
    return services


def boot_id() -> str:
    """Names this boot of this machine: process numbers mean nothing beyond it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        import psutil

        return f"{psutil.boot_time():.0f}"


@contextmanager
def lean_imports(unused: Sequence[str] = _UNUSED_IMPORTS) -> Iterator[None]:
    """Hide modules that a library would import and nobody here uses. Afterwards they can be imported again.

    By default what DeepSpeed (its autotuner) and transformers (a decoding method) import: it costs every worker five
    seconds of processor time and 110 MB.
    """
    hidden = [name for name in unused if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)  # another thread may have been here
