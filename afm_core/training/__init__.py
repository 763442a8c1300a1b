"""Training: base models, supervised fine-tuning on Ray Train and DeepSpeed, exact resumption, model directories.

Light names are exported here; everything that needs torch lives in its own module and is imported when used:
`stages` (the stage functions), `sft` (the loop), `deepspeed_engine`, `worker` (what Ray Train runs), `tiny`.
"""

from afm_core.training.errors import TrainingFailed, TrainingWorkerDied
from afm_core.training.models import cached_models, check_source, is_made, model_cache, resolve_model
from afm_core.training.plan import Batch, micro_batches, training_steps
from afm_core.training.schedule import learning_rate

__all__ = [
    "Batch",
    "TrainingFailed",
    "TrainingWorkerDied",
    "cached_models",
    "check_source",
    "is_made",
    "learning_rate",
    "micro_batches",
    "model_cache",
    "resolve_model",
    "training_steps",
]
