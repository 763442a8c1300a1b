"""Telemetry is off unless the user decided otherwise."""

import os

import pytest

from afm_core.config.environment import QUIET, silence_telemetry


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in QUIET:
        monkeypatch.setenv(name, "restored afterwards")
        monkeypatch.delenv(name)


def test_everything_is_silenced_when_nothing_is_set():
    silence_telemetry()
    assert {name: os.environ[name] for name in QUIET} == dict(QUIET)


def test_the_users_settings_win(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    silence_telemetry()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "1"
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_a_user_who_allows_the_hub_allows_its_relatives(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    silence_telemetry()
    assert os.environ["TRANSFORMERS_OFFLINE"] == "0"
