"""`afm serve`: an OpenAI-compatible endpoint whose model uses its tools inside one completion."""

import contextlib
import signal
import socket
from pathlib import Path

import click

from afm_cli.common import config_options, emit, json_option, model_option, resolve_config, say

_BACKLOG = 2048
_GRACE_SECONDS = 30
"""How long running answers may take to end once the server is told to stop."""


@click.command()
@model_option
@click.option("--host", default="127.0.0.1", show_default=True, help="There is no authentication: keep it loopback.")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@click.option("--name", default="afm", show_default=True, help="The model's name in the API.")
@config_options
@json_option
def serve(
    model: str,
    host: str,
    port: int,
    name: str,
    profile: str,
    config_file: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Serve a model on /v1/chat/completions (streaming too), /v1/models and /health, until interrupted.

    One completion is one whole episode: `content` is the answer, `reasoning_content` the trace with the tools' results.
    With --json one document with the address is printed first.

    \b
    Example: afm serve --model champion --port 8000
    """
    import uvicorn

    from afm_cli.policy import live_policy
    from afm_core.rollout.serve import create_app

    config = resolve_config(profile, config_file, overrides)
    # uvicorn ends its server and raises the signal again: SIGTERM, too, must close the policy in order.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _bound(host, port) as listening, live_policy(config, model) as policy:
        listening.listen(_BACKLOG)
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
        if as_json:
            emit({"url": url, "model": name, "policy_version": policy.policy_version})
        else:
            say(f"serving {name} on {url}")
        settings = uvicorn.Config(
            create_app(policy, name),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        server = uvicorn.Server(settings)
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listening])


def _bound(host: str, port: int) -> socket.socket:
    """A socket of that address, taken before the model is loaded. Raises ConfigError if it cannot be had."""
    from afm_core.config import ConfigError

    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot serve on {host}:{port}: {error.strerror or error}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot serve on {host}:{port}: {error.strerror or error}; choose another --port") from error
    return listening
