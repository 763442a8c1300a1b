"""vLLM as a rollout worker's engine: it pauses, takes weights, and the proof catches it when it did not."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "engines"))


@pytest.mark.integration
@pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed")
def test_vllm_takes_weights_between_turns_and_is_caught_when_it_kept_old_ones(tmp_path):
    from tests_engines_model import make_model

    models = [
        make_model(tmp_path / f"model{seed}", seed=seed, head_dim=32, max_position_embeddings=512) for seed in (1, 2)
    ]
    script = Path(__file__).with_name("vllm_in_worker.py")
    process = subprocess.Popen(
        [sys.executable, str(script), *map(str, models), str(tmp_path / "sync")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
    )
    try:
        output, _ = process.communicate(timeout=400)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    lines = [line for line in output.splitlines() if line.startswith("REPORT ")]
    assert lines, output[-4000:]
    report = json.loads(lines[0].removeprefix("REPORT "))
    for passed in ("first", "while_running", "mended"):
        assert isinstance(report[passed], float), report
    assert report["keys"] == ["0", "1", "2", "3", "4"]
    assert report["versions_known"]
    assert "aborted" not in report["statuses"], report
    for caught in ("not_reloaded", "cache_kept"):
        assert "engine 0 does not sample from the trainer's weights" in str(report[caught]), report
    assert report["transfer"][0]
    assert report["transfer"][1] > 3
