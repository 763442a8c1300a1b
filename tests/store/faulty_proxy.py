"""A tiny HTTP proxy in front of an S3 server that fails as networks and servers do."""

import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

Fault = str
"""`error` (500, not forwarded), `reset` (connection cut, not forwarded), `lost` (done, but the answer is cut off),
`slow` (two seconds late), or empty."""
Choice = Callable[[str, str], Fault]
SLOW_SECONDS = 2.0


class FaultyProxy(ThreadingHTTPServer):
    """Forwards to `upstream`; `choose(method, path)` names the fault of each request. `faults` counts them."""

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream).netloc
        self.choose: Choice = lambda method, path: ""
        self.faults = 0
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gives up is no news here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.choose(self.command, self.path)
        self.server.faults += bool(fault)
        if fault == "reset":
            self._cut()
            return
        if fault == "error":
            self.send_response(500)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if fault == "slow":
            time.sleep(SLOW_SECONDS)
        connection = http.client.HTTPConnection(self.server.upstream, timeout=30)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() != "expect":
                connection.putheader(name, value)  # the host too: the signature covers it
        connection.endheaders(body)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if fault == "lost":
            self._cut()
            return
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward

    def _cut(self) -> None:
        """Reset the connection."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        """Quiet."""


@contextmanager
def faulty_proxy(upstream: str) -> Iterator[FaultyProxy]:
    """A proxy for the block."""
    proxy = FaultyProxy(upstream)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()


def once_each(fault: Fault, method: str = "") -> Choice:
    """The first request for every (method, path) fails, its repetition does not."""
    seen: set[tuple[str, str]] = set()

    def choose(asked: str, path: str) -> Fault:
        fresh = (asked, path) not in seen and (not method or method == asked)
        seen.add((asked, path))
        return fault if fresh else ""

    return choose


def always(fault: Fault, method: str, part: str) -> Choice:
    """Every request of that method whose path has `part` fails."""
    return lambda asked, path: fault if asked == method and part in path else ""
