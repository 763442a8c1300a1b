"""What every configuration section is made of, and the settings that both trainers (SFT and RL) share."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

NOT_IN_KEY: dict[str, Any] = {"in_key": False}
"""Mark a field that cannot change a result: `Field(..., json_schema_extra=NOT_IN_KEY)`."""

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(gt=0)]


class Section(BaseModel):
    """Base of every section: frozen, unknown keys and infinite numbers refused, defaults validated."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class Dtype(StrEnum):
    """Number format of weights and activations."""

    FP32 = "fp32"
    BF16 = "bf16"


class LoraConfig(Section):
    """Low-rank adapters instead of full fine-tuning."""

    rank: Positive = 16
    alpha: float = Field(default=32.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class TrainerConfig(Section):
    """The optimizer (AdamW), the number format, the workers and the checkpoints of a training stage.

    A step's rows are packed into micro-batches of at most `micro_batch_tokens` tokens, which bounds memory.
    """

    learning_rate: float = Field(default=3e-4, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    gradient_clip: float = Field(default=1.0, gt=0)
    micro_batch_tokens: Positive = 1024
    lora: LoraConfig | None = None
    dtype: Dtype = Dtype.FP32
    zero_stage: Literal[0, 1, 2, 3] = 0
    world_size: Positive = 1
    threads: Positive = 2
    gpus_per_worker: int = Field(default=0, ge=0)
    checkpoint_every: Positive = 20
    keep_last: Positive = 1
    seed: int = 0
