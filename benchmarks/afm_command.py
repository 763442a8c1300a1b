"""The `afm` command for the measurements that drive the product from outside, as a user's shell would."""

import json
import os
import subprocess
import sys
from typing import Any

AFM = (sys.executable, "-m", "afm_cli.main")


def afm(*arguments: str, **variables: str) -> Any:
    """The JSON document of an afm command that must succeed, run with these environment variables too.

    Raises:
        RuntimeError: its exit code is not 0; it has said why on stderr.
    """
    result = subprocess.run(
        [*AFM, *arguments, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )
    if result.returncode != 0:
        raise RuntimeError(f"afm {' '.join(arguments)} ended with {result.returncode}")
    return json.loads(result.stdout)
