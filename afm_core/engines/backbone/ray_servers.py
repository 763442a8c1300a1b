"""vLLM servers on a Ray cluster as endpoints: one actor a server, where Ray finds room for its GPUs.

The servers live as long as the block: an actor holds its server by a pipe, so that a killed stage, a killed actor or a
lost node takes the server with it. A server that dies later is an endpoint that does not answer (see pool.py): the
others go on. They listen at their node's own address and accept one key, made for the stage and never stored.
"""

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from afm_core.cluster import connected
from afm_core.config import ConfigError, EndpointConfig, ServerConfig
from afm_core.engines.backbone.vllm_server import ChatServer, vllm_command

KEY_VARIABLE = "AFM_SERVED_MODELS_KEY"
"""Where this process keeps the key of the servers that it started."""
_CLOSE_SECONDS = 30.0
MakeCommand = Callable[[ServerConfig], list[str]]


def command_of(server: ServerConfig) -> list[str]:
    """What a server runs."""
    return vllm_command(server.source, server.model, server.arguments)


@contextmanager
def served(servers: Sequence[ServerConfig], make_command: MakeCommand = command_of) -> Iterator[list[EndpointConfig]]:
    """Start the servers, all at once, and give their endpoints; none needs no Ray.

    Raises:
        ConfigError: the cluster has no room for them.
        ServerFailed: a server did not start; the message holds the end of its log. No server is left then.
    """
    if not servers:
        yield []
        return
    wanted = [(server, number) for server in servers for number in range(server.count)]
    with connected(sum(server.cpus for server, _ in wanted)):
        _check_room([server for server, _ in wanted])
        os.environ[KEY_VARIABLE] = secrets.token_urlsafe(32)
        actors = [_spawn(server, make_command) for server, _ in wanted]
        try:
            addresses = _started(actors)
            yield [_endpoint(*one, address) for one, address in zip(wanted, addresses, strict=True)]
        finally:
            _stop(actors)
            del os.environ[KEY_VARIABLE]


class _Served:
    """The actor of one server."""

    def __init__(self, server: ServerConfig, command: list[str], key: str) -> None:
        import ray

        self._directory = tempfile.TemporaryDirectory(prefix="afm-server-")
        self._server = ChatServer(
            command,
            Path(self._directory.name) / "server.log",
            host=ray.util.get_node_ip_address(),
            environment={"VLLM_API_KEY": key},
            start_seconds=server.start_seconds,
        )

    def start(self) -> str:
        """Wait until it is healthy; its address."""
        self._server.start()
        return self._server.base_url

    def close(self) -> None:
        """End the server."""
        self._server.close()
        self._directory.cleanup()


def _spawn(server: ServerConfig, make_command: MakeCommand) -> object:
    import ray

    actor = ray.remote(_Served).options(
        num_cpus=server.cpus, num_gpus=server.gpus, max_restarts=0, scheduling_strategy="SPREAD"
    )
    return actor.remote(server, make_command(server), os.environ[KEY_VARIABLE])


def _started(actors: Sequence[object]) -> list[str]:
    """The addresses; the first failure, once it is there."""
    import ray
    from ray.exceptions import RayTaskError

    try:
        addresses: list[str] = ray.get([actor.start.remote() for actor in actors])  # type: ignore[attr-defined]
    except RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from error
    return addresses


def _endpoint(server: ServerConfig, number: int, address: str) -> EndpointConfig:
    return EndpointConfig(
        name=f"{server.model}-{number}",
        base_url=address,
        model=server.model,
        key_variable=KEY_VARIABLE,
        concurrency=server.concurrency,
        timeout_seconds=server.timeout_seconds,
    )


def _check_room(servers: Sequence[ServerConfig]) -> None:
    """Raise ConfigError for more than the whole cluster has; what is busy now may be waited for."""
    import ray

    there = ray.cluster_resources()
    for name, wanted in (("CPU", sum(one.cpus for one in servers)), ("GPU", sum(one.gpus for one in servers))):
        if wanted > there.get(name, 0):
            raise ConfigError(
                f"team.servers need {wanted} {name}s and the Ray cluster has {there.get(name, 0):g}: lower their "
                f"count, their {name.lower()}s, or join a larger cluster (RAY_ADDRESS)"
            )


def _stop(actors: Sequence[object]) -> None:
    import ray
    from ray.exceptions import RayError

    for actor in actors:
        with suppress(RayError):  # it is killed below, and its server with it
            ray.get(actor.close.remote(), timeout=_CLOSE_SECONDS)  # type: ignore[attr-defined]
        ray.kill(actor)
