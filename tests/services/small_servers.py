"""A tiny HTTP server in the place of a big one, and who runs for a test's home."""

import os
import signal
import time
from pathlib import Path

import psutil

from afm_core.services import processes

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *a): pass
http.server.HTTPServer.allow_reuse_address = True
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def processes_of(home: Path) -> list[psutil.Process]:
    """All living processes that a stack of that home has started."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except (psutil.Error, OSError):
            continue
        if processes.MARK in environment and environment.get("HOME_OF_TEST") == str(home):
            found.append(process)
    return [process for process in found if processes.start_of(process.pid) is not None]


def kill(pid: int) -> None:
    """SIGKILL, and wait until the process is gone: its sockets close a moment before."""
    os.kill(pid, signal.SIGKILL)
    while processes.start_of(pid) is not None:
        time.sleep(0.01)
