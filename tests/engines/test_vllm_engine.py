"""vLLM against our engine on the same tiny model, in a process group that is always killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from afm_core.config import ConfigError, EngineConfig, EngineKind
from afm_core.engines import open_engine
from afm_core.engines.vllm_engine import _prepare_environment

NEAR_TIE = 1e-3
"""Greedy decoding may part where the two best log-probabilities are this close."""
LOGPROB_TOLERANCE = 2e-3


def test_without_vllm_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("afm_core.engines.open.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"chain-of-agents\[gpu\]"):
        open_engine(EngineConfig(kind=EngineKind.VLLM), tmp_path, "v")


def test_vllm_writes_no_line_on_standard_output(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    _prepare_environment(EngineConfig())
    assert os.environ["VLLM_LOGGING_STREAM"] == "ext://sys.stderr"


@pytest.mark.integration
@pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed")
def test_vllm_agrees_with_the_transformers_engine(tmp_path):
    from tests_engines_model import make_model

    first = make_model(tmp_path / "first", seed=1, head_dim=32)
    second = make_model(tmp_path / "second", seed=2, head_dim=32)
    script = Path(__file__).with_name("vllm_against_transformers.py")
    process = subprocess.Popen(
        [sys.executable, str(script), str(first), str(second)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        output, _ = process.communicate(timeout=500)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    lines = [line for line in output.splitlines() if line.startswith("REPORT ")]
    assert lines, output[-4000:]
    report = json.loads(lines[0].removeprefix("REPORT "))
    assert all(gap < NEAR_TIE for gap in report["divergences"]), report
    assert report["logprob_error"] < LOGPROB_TOLERANCE
    assert report["tempered_error"] < LOGPROB_TOLERANCE
    assert report["stop"][0] == "stop"
    assert report["stop"][2:] == [True, True]
    assert report["seeds_repeat"]
    assert report["reloaded_first_logprob_error"] < LOGPROB_TOLERANCE
    assert report["versions"] == ["v2", "v2"]
    assert report["pending_after_release"] == 0
