"""Ports on loopback: which are free, who holds one, and choosing some."""

import random
import socket
from collections.abc import Collection

LOOPBACK = "127.0.0.1"
PARTNER = 10_000
"""The S3 server takes port + 10000 for gRPC beside each of its ports."""

_CHOSEN = (20_000, 22_700)
"""Ports are chosen here: they and their partners are below the range that Linux gives to outgoing connections."""


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: old connections do not count
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def holder(port: int) -> str:
    """`process 123 (name)` that listens at the port, or `another process` where the system does not tell."""
    import psutil

    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return "another process"
    for one in connections:
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid is not None:
            try:
                return f"process {one.pid} ({psutil.Process(one.pid).name()})"
            except psutil.Error:
                break
    return "another process"


def choose(paired: bool, taken: Collection[int]) -> int:
    """A free port that is not in `taken`; with `paired`, its partner is free and not taken either.

    Raises:
        RuntimeError: there is none.
    """
    candidates = list(range(*_CHOSEN))
    random.shuffle(candidates)
    for port in candidates:
        wanted = with_partner(port, paired)
        if not any(one in taken for one in wanted) and all(map(is_free, wanted)):
            return port
    raise RuntimeError(f"no free port between {_CHOSEN[0]} and {_CHOSEN[1]}")


def with_partner(port: int, paired: bool) -> tuple[int, ...]:
    """The port and, for a paired one, the second port that comes with it."""
    return (port, port + PARTNER) if paired else (port,)
