"""Servers of our own: healthy or told why not, gone with their owner, and on Ray with a key of their own."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from afm_core.cluster import connected
from afm_core.config import ConfigError, ServerConfig
from afm_core.engines.backbone import BackbonePool, CallStatus, ChatRequest, ChatRole, Message
from afm_core.engines.backbone.ray_servers import KEY_VARIABLE, served
from afm_core.engines.backbone.vllm_server import ChatServer, ServerFailed, vllm_command

ROOT = Path(__file__).parents[2]
SCRIPTED = [sys.executable, str(ROOT / "tests" / "teacher" / "scripted_server.py")]


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def gone(pid, seconds=20):
    """Whether a process is over within the time."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def ask(endpoints):
    """One question to the first endpoint's model."""
    asked = (Message(role=ChatRole.SYSTEM, content="You check a proposed answer"),)

    async def main():
        async with BackbonePool(endpoints) as pool:
            return await pool.complete(ChatRequest(model=endpoints[0].model, messages=asked))

    return asyncio.run(main())


def command(server):
    return SCRIPTED


def test_vllm_is_started_as_a_module_with_its_name():
    started = vllm_command("/models/m", "m", ("--max-model-len", "4096"))
    assert started[1:] == [
        *("-m", "vllm.entrypoints.openai.api_server", "--model", "/models/m"),
        *("--served-model-name", "m", "--max-model-len", "4096"),
    ]


@pytest.mark.integration
def test_a_server_that_ends_says_why(tmp_path):
    wrong = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    with pytest.raises(ServerFailed, match="no such model"):
        ChatServer(wrong, tmp_path / "log").start()


@pytest.mark.integration
def test_a_server_dies_with_an_owner_that_is_killed(tmp_path):
    owner = textwrap.dedent(
        f"""
        import pathlib, psutil, sys, time
        from afm_core.engines.backbone.vllm_server import ChatServer
        with ChatServer({SCRIPTED!r}, pathlib.Path({str(tmp_path / "log")!r})) as server:
            print(*[one.pid for one in psutil.Process().children(recursive=True)], flush=True)
            time.sleep(600)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE, text=True, start_new_session=True)
    children = [int(pid) for pid in process.stdout.readline().split()]
    assert len(children) == 2  # the guard and the server
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert all(gone(pid) for pid in children)


@pytest.fixture(scope="module")
def ray():
    with connected(2):
        yield


@pytest.mark.integration
def test_servers_on_ray_are_endpoints_while_the_block_lasts(ray):
    server = ServerConfig(model="m", source="/models/m", count=2, gpus=0)
    with served([server], command) as endpoints:
        assert [one.name for one in endpoints] == ["m-0", "m-1"]
        assert len({one.base_url for one in endpoints}) == 2
        running = [one for one in psutil.process_iter(["cmdline"]) if SCRIPTED[1] in (one.info["cmdline"] or ())]
        assert len(running) >= 2
        assert ask(endpoints).status is CallStatus.OK
        os.environ[KEY_VARIABLE], key = "wrong", os.environ[KEY_VARIABLE]
        with pytest.raises(ConfigError, match="HTTP 401"):
            ask(endpoints)
        os.environ[KEY_VARIABLE] = key
    assert all(gone(one.pid) for one in running)
    assert KEY_VARIABLE not in os.environ


@pytest.mark.integration
def test_a_cluster_without_room_is_told_before_anything_starts(ray):
    with pytest.raises(ConfigError, match="need 8 CPUs"):
        with served([ServerConfig(model="m", source="s", count=8, gpus=8)], command):
            raise AssertionError("started")


def test_no_server_needs_no_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with served([], command) as endpoints:
        assert endpoints == []
