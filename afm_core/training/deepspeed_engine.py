"""The training engine on DeepSpeed: one path for a laptop (stage 0, fp32) and a GPU cluster (ZeRO-3, bf16).

Departs from DeepSpeed's habits: accumulation is the caller's (a step may have any number of micro-batches), AdamW is
torch's fused one (nothing is compiled at run time), and with ZeRO 0 the clipping is done here, so that the gradient's
norm is known. DeepSpeed *averages* gradients over ranks; the loss is a global token mean already, so it is multiplied
by the world size before the backward pass.

Needs torch.distributed to be initialised (Ray Train does it), one process a rank.
"""

import json
import logging
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from afm_core.config import Dtype, TrainerConfig
from afm_core.training.loss import PackedBatch, PackedCausalLM

_TAG = "state"
_PREFIX = "model."
"""PackedCausalLM holds the causal LM as `model`."""


def deepspeed_config(config: TrainerConfig) -> dict[str, Any]:
    """DeepSpeed's configuration. bf16 always keeps fp32 masters, which DeepSpeed has from ZeRO 1 on."""
    stage = zero_stage(config)
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": config.gradient_clip if stage else 0.0,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": config.learning_rate,
                "betas": list(config.betas),
                "eps": 1e-8,
                "weight_decay": config.weight_decay,
                "torch_adam": True,
                "fused": True,
            },
        },
        "zero_optimization": {"stage": stage, "overlap_comm": False, "contiguous_gradients": True},
        "bf16": {"enabled": config.dtype is Dtype.BF16},
        **({"data_types": {"grad_accum_dtype": "fp32"}} if config.dtype is Dtype.BF16 else {}),
        "steps_per_print": 10**9,
        "wall_clock_breakdown": False,
    }


def zero_stage(config: TrainerConfig) -> int:
    """The ZeRO stage in use: as configured, but at least 1 for bf16 (fp32 master weights)."""
    return max(config.zero_stage, 1) if config.dtype is Dtype.BF16 else config.zero_stage


def load_for_training(directory: Path, config: TrainerConfig) -> Any:
    """The causal LM with LoRA adapters injected if configured; with ZeRO-3 every rank loads only its part."""
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if config.gpus_per_worker else "cpu")
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if config.dtype is Dtype.BF16 else torch.float32
    with _partitioned_loading(config):
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    if config.lora is not None:
        from afm_core.training.lora import inject

        torch.manual_seed(config.seed)
        inject(model, config.lora)
    model.train()
    return model


class DeepSpeedEngine:
    """See afm_core.training.sft.TrainingEngine and, for a PolicyLoss, afm_core.training.rl.update.PolicyEngine.

    `module` is a function from packed batches to a scalar, or to a vector whose first entry is to be minimised.
    """

    def __init__(self, module: PackedCausalLM, config: TrainerConfig) -> None:
        import deepspeed
        from deepspeed.utils import logger

        logger.setLevel(logging.WARNING)
        # DeepSpeed would compile a shared-memory collective on first use (a minute, and a compiler): gloo does it.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        self._engine, _, _, _ = deepspeed.initialize(
            model=module, model_parameters=_parameter_groups(module, config), config=deepspeed_config(config)
        )
        self._clips = zero_stage(config) == 0
        self._partitions = zero_stage(config) == 3
        self._norm = 0.0
        self._clip = config.gradient_clip
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.device = torch.device(self._engine.device)
        if self._clips:
            self._engine.optimizer.register_step_pre_hook(self._clip_gradients)

    def seed(self, seed: int) -> None:
        """Seed dropout."""
        torch.manual_seed(seed % 2**63)

    def accumulate(self, batch: PackedBatch, weight: float) -> list[float]:
        """Forward and backward of one micro-batch; gradients add up until `step`. Returns the module's values."""
        values: Tensor = self._engine(self._ready(batch)).reshape(-1)
        self._engine.backward(values[0] * (weight * self.world_size), scale_wrt_gas=False)
        result: list[float] = values.detach().tolist()
        return result

    def score(self, batch: PackedBatch) -> Tensor:
        """Log-probabilities of the supervised tokens, [S], on the CPU; no gradient, no dropout.

        The module must be a PolicyLoss. With ZeRO-3 a collective call: every rank must make equally many.
        """
        self._engine.eval()
        with torch.no_grad():
            scored: Tensor = self._engine(self._ready(batch), score=True)
        self._engine.train()
        return scored.cpu()

    def step(self, learning_rate: float) -> float:
        """Reduce, clip, update, zero; returns the gradient norm before clipping."""
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        norm = self._norm if self._clips else self._engine.get_global_grad_norm()
        return float(norm) if norm is not None else math.nan

    def total(self, values: Sequence[float]) -> list[float]:
        """Sums over all ranks, in fp64."""
        tensor = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return [float(value) for value in tensor.tolist()]

    def save(self, directory: Path) -> None:
        """Write model and optimizer below an existing directory (a collective call; every rank writes its part)."""
        self._engine.save_checkpoint(str(directory), tag=_TAG, save_latest=False)

    def load(self, directory: Path) -> None:
        """Read what `save` wrote into a freshly built engine. Raises ValueError if nothing can be read."""
        path, _ = self._engine.load_checkpoint(str(directory), tag=_TAG)
        if path is None:
            raise ValueError(f"{directory} holds no training checkpoint")

    def model_state(self) -> dict[str, Tensor] | None:
        """All parameters and lasting buffers of the causal LM on rank 0, None elsewhere (a collective call).

        With ZeRO-3 each rank holds a part of every parameter: they are gathered one by one. (Saving from rank 0
        alone is how a 7B model becomes a file of 138 kB: DeepSpeed#3841.)
        """
        import deepspeed

        state: dict[str, Tensor] = {}
        for name, parameter in self._engine.module.named_parameters():
            partitioned = hasattr(parameter, "ds_id")
            with deepspeed.zero.GatheredParameters([parameter], enabled=partitioned):
                if self.rank == 0:
                    data = parameter.detach()
                    state[name.removeprefix(_PREFIX)] = data.to("cpu", copy=True) if partitioned else data
        kept = self._engine.module.state_dict().keys()  # a router's correction bias is a buffer, and part of the model
        state |= {
            name.removeprefix(_PREFIX): buffer for name, buffer in self._engine.module.named_buffers() if name in kept
        }
        return state if self.rank == 0 else None

    @property
    def model(self) -> Any:
        """The causal LM."""
        return self._engine.module.model

    def _ready(self, batch: PackedBatch) -> PackedBatch:
        """On the device; with ZeRO-3 in as many chunks on every rank, since each chunk gathers the head."""
        if self._partitions and self.world_size > 1:
            most = torch.tensor([batch.chunks], device=self.device)
            dist.all_reduce(most, op=dist.ReduceOp.MAX)
            batch = replace(batch, chunks=int(most))
        return batch.to(self.device)

    def _clip_gradients(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._norm = float(torch.nn.utils.clip_grad_norm_(parameters, self._clip, foreach=False))


def _parameter_groups(module: PackedCausalLM, config: TrainerConfig) -> list[dict[str, Any]]:
    """Trainable parameters; weight decay spares vectors (norms, biases)."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not config.weight_decay:
        return [{"params": trainable}]
    sizes = [len(getattr(parameter, "ds_shape", parameter.shape)) for parameter in trainable]
    matrices = [parameter for parameter, size in zip(trainable, sizes, strict=True) if size > 1]
    vectors = [parameter for parameter, size in zip(trainable, sizes, strict=True) if size <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


@contextmanager
def _partitioned_loading(config: TrainerConfig) -> Iterator[None]:
    """Within it transformers loads a model already partitioned, if ZeRO-3 is on."""
    if zero_stage(config) < 3:
        yield
        return
    from transformers.integrations import HfDeepSpeedConfig

    # transformers keeps a weak reference: the configuration lives as long as this name.
    alive = HfDeepSpeedConfig(json.loads(json.dumps(deepspeed_config(config))))
    yield
    del alive
