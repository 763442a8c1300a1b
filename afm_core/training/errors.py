"""How training ends badly. A dead worker is infrastructure (worth a retry, which resumes); the rest is not."""


class TrainingFailed(RuntimeError):
    """The training loop raised: the message holds the first worker's own error."""


class TrainingWorkerDied(ConnectionError):
    """A training process ended without an error of its own: killed, out of memory, its node lost."""


class TrainingStopped(Exception):
    """The loop was asked to stop and has saved a checkpoint."""
