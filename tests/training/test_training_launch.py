"""How the end of a training job is told: what is worth a retry, and what is not."""

from types import SimpleNamespace

import pytest

from afm_core.execution.worker import classify
from afm_core.rollout.ray_actors import RolloutWorkerDied
from afm_core.training.errors import TrainingFailed, TrainingWorkerDied
from afm_core.training.launch import _explained


@pytest.mark.parametrize(
    ("cause", "kind", "retried"),
    [
        (RolloutWorkerDied("rollout worker 1 died"), TrainingWorkerDied, "infrastructure"),
        (RuntimeError("loss is nan"), TrainingFailed, "failed"),
    ],
)
def test_nemo_rl_3488_dead_rollout_workers_are_infrastructure_and_named(cause, kind, retried) -> None:
    consequence = RuntimeError("gloo: Connection closed by peer")
    error = _explained(SimpleNamespace(worker_failures={0: consequence, 1: cause}), {})
    assert type(error) is kind
    assert str(cause) in str(error)
    assert classify(error) == retried
