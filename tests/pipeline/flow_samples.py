"""Flows without Prefect: their tasks run at once, in this thread; the functions are the real ones."""

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tasks
import tasks.runner


class AtOnce:
    """A Prefect task whose `submit` runs its function."""

    def __init__(self, task: Any) -> None:
        self._function = task.fn

    def submit(self, *arguments: Any, **named: Any) -> Any:
        """See prefect.Task.submit: futures among the arguments are replaced by their results."""

        def given(value: Any) -> Any:
            return value.result() if hasattr(value, "result") else value

        made = self._function(*map(given, arguments), **{name: given(value) for name, value in named.items()})
        value = getattr(made, "data", made)
        return SimpleNamespace(result=lambda: value)


def without_prefect(monkeypatch: pytest.MonkeyPatch, flow: ModuleType, publish: Callable[..., Any]) -> None:
    """Let the flow of a module run here, with another end."""
    shown = {name: AtOnce(getattr(tasks, name)) for name in tasks.__all__}
    monkeypatch.setattr(flow, "stage", SimpleNamespace(**shown))
    monkeypatch.setattr(flow, "publish", publish)
    monkeypatch.setattr(tasks.runner, "get_run_logger", lambda: None)
    monkeypatch.setattr(tasks.runner, "task_run", SimpleNamespace(id="12345678123456781234567812345678"))
