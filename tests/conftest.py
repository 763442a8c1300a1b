"""Settings for every test: quiet libraries, a home of its own, reproducible Hypothesis without time assertions."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")

from afm_core.config.environment import silence_telemetry

silence_telemetry()

# Machines are noisy: Hypothesis's own time limits would make tests flaky. Derandomised, so that CI is repeatable.
settings.register_profile(
    "house", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", parent=settings.get_profile("house"), derandomize=False, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "house"))


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has its own AFM_HOME."""
    monkeypatch.setenv("AFM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AFM_STORE", raising=False)
    monkeypatch.delenv("AFM_CRASH_AT", raising=False)
    return tmp_path / "home"
