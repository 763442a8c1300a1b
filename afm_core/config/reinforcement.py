"""The sections of reinforcement learning: which prompts, which objective, and how episodes are sampled."""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from afm_core.config.base import NOT_IN_KEY, Positive, Section, Share, TrainerConfig


class Estimator(StrEnum):
    """How rewards become advantages; see afm_core.training.rl.advantages."""

    GRPO = "grpo"
    """(reward - group mean) / group standard deviation."""
    DR_GRPO = "dr_grpo"
    """reward - group mean: no division, so that easy and hard groups count alike."""
    RLOO = "rloo"
    """reward - mean of the group's other members."""
    REINFORCE_PP = "reinforce_pp"
    """Discounted returns, normalised over the whole batch."""


class Objective(StrEnum):
    """The policy loss; see afm_core.training.rl.losses."""

    DAPO = "dapo"
    """Token-level clipped ratio, the upper bound looser than the lower one, dual clip for negative advantages."""
    GSPO = "gspo"
    """One ratio a sequence: the geometric mean of its tokens' ratios."""
    CISPO = "cispo"
    """The clipped ratio as a constant weight of the log-probability: no token loses its gradient."""


class Aggregation(StrEnum):
    """What the sum of token losses is divided by."""

    TOKEN_MEAN = "token_mean"
    """All trained tokens of the update: every token counts alike."""
    SEQUENCE_MEAN = "sequence_mean"
    """Mean over trajectories of their token means: every trajectory counts alike."""
    CONSTANT = "constant"
    """Trajectories x `rl.max_tokens`: neither length nor batch changes a token's weight (Dr. GRPO)."""


class Correction(StrEnum):
    """Truncated importance sampling between the sampler's policy and the trainer's."""

    NONE = "none"
    """The ratio is taken to the sampler's own log-probabilities."""
    TOKEN = "token"
    """Each token is weighted by min(trainer / sampler, cap)."""
    SEQUENCE = "sequence"
    """Each trajectory is weighted by min(product of its tokens' trainer / sampler, cap)."""


class FailurePolicy(StrEnum):
    """What happens to a trajectory that failed in a known way."""

    TRAIN = "train"
    """It is trained with the reward that it got (0)."""
    MASK = "mask"
    """It is left out and counted."""


class SelectionConfig(Section):
    """Which training tasks RL is given, measured before it: the r_q gate and pass-rate bands.

    pool: tasks considered (a seeded sample of the train split; None: all). samples: episodes a task from the policy;
    0 measures nothing and keeps the pool. A task stays if its pass rate lies in [minimum, maximum].
    closed_book_samples: answers of the base model without tools; a task that it knows more often than `maximum_known`
    is dropped (paper: 32 samples, 0.3). curriculum: easiest first, else a seeded order.
    """

    pool: Positive | None = None
    samples: int = Field(default=0, ge=0)
    minimum_pass_rate: Share = 0.0
    maximum_pass_rate: Share = 0.99
    closed_book_samples: int = Field(default=0, ge=0)
    maximum_known: Share = 0.3
    temperature: float = Field(default=1.0, gt=0)
    curriculum: bool = False
    seed: int = 0

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if self.minimum_pass_rate > self.maximum_pass_rate:
            raise ValueError("minimum_pass_rate must not exceed maximum_pass_rate: no task could stay")
        if self.curriculum and not self.samples:
            raise ValueError("a curriculum needs measured pass rates: set selection.samples")
        return self


class RlConfig(TrainerConfig):
    """Reinforcement learning with tools. A step samples `prompts` tasks x `group_size` episodes and trains on them.

    steps: 0 leaves the model as it is. max_tokens: longest trajectory that is trained, prompt and observations
    included. clip_low, clip_high: the ratio stays in [1 - low, 1 + high]; dual_clip bounds the loss of a negative
    advantage. discount: across model tokens, reinforce_pp only. overlong_buffer: model tokens before the episode's
    `agent.budget.total_tokens` over which a penalty grows to `overlong_penalty` (0: off). format_weight: the share of
    the reward that is for ending with an answer, the fewer violations of the grammar the better (the authors' unused
    alternative has 0.1). minimum_group: scored members a group needs. sampling_rounds: how often a step may draw new
    prompts until it has `prompts` groups with signal. updates: optimizer steps a batch is split into. evaluate_every:
    greedy accuracy on `dev_limit` dev tasks every so many steps, before the first and after the last; the best model
    is kept. patience: evaluations without a new best after which training stops early (None: never). probe_tolerance:
    largest difference of log-probabilities between trainer and sampler after a sync (nats). maximum_staleness: 0 is
    synchronous; with more, episodes of later steps are sampled while a step trains, and no token is trained that is
    more than so many updates old.
    """

    steps: int = Field(default=6, ge=0)
    prompts: Positive = 6
    group_size: int = Field(default=8, ge=2)
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = 1.0
    top_k: int | None = None
    estimator: Estimator = Estimator.GRPO
    objective: Objective = Objective.DAPO
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.28, gt=0)
    dual_clip: float | None = Field(default=10.0, gt=1)
    kl_coefficient: float = Field(default=0.0, ge=0)
    entropy_coefficient: float = 0.0
    discount: float = Field(default=1.0, gt=0, le=1)
    correction: Correction = Correction.TOKEN
    correction_cap: float = Field(default=2.0, gt=0)
    overlong_buffer: int = Field(default=0, ge=0)
    overlong_penalty: float = Field(default=1.0, ge=0)
    format_weight: Share = 0.0
    minimum_group: int = Field(default=2, ge=2)
    truncated: FailurePolicy = FailurePolicy.TRAIN
    parse_error: FailurePolicy = FailurePolicy.TRAIN
    void_turn: FailurePolicy = FailurePolicy.TRAIN
    sampling_rounds: Positive = 3
    updates: Positive = 1
    max_tokens: Positive = 1024
    learning_rate: float = Field(default=2e-5, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    checkpoint_every: Positive = 1
    evaluate_every: Positive = 3
    dev_limit: Positive | None = None
    patience: Positive | None = None
    probe_tolerance: float = Field(default=0.01, gt=0)
    maximum_staleness: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if self.top_p != 1.0 or self.top_k is not None:
            raise ValueError(
                "rl.top_p and rl.top_k cut the distribution that is sampled: its log-probabilities could not be "
                "compared with the trainer's; leave top_p = 1 and top_k unset"
            )
        if self.minimum_group > self.group_size:
            raise ValueError("minimum_group must not exceed group_size: no group could train")
        if self.max_tokens > self.micro_batch_tokens:
            raise ValueError("max_tokens must not exceed micro_batch_tokens: the longest trajectory must fit a batch")
        if self.updates > self.prompts * self.group_size:
            raise ValueError("updates must not exceed prompts x group_size: an update needs a trajectory")
        if self.discount != 1.0 and self.estimator is not Estimator.REINFORCE_PP:
            raise ValueError(f"discount is for reinforce_pp; {self.estimator} gives every token one advantage")
        return self


class RolloutConfig(Section):
    """How RL samples episodes. workers: Ray actors with an engine each; 0 samples inside the trainer's process.

    deterministic: fixed batch shape, tool results admitted in a fixed order, so that two runs give the same bytes (not
    with asynchronous training). maximum_restarts: dead workers that are replaced before the run fails. stall_seconds:
    without any progress the run ends with every stack. simulated_tool_seconds: latency added to each tool call, for
    studies of scheduling.
    """

    deterministic: bool = True
    workers: int = Field(default=0, ge=0)
    maximum_restarts: int = Field(default=3, ge=0, json_schema_extra=NOT_IN_KEY)
    stall_seconds: float = Field(default=1800.0, gt=0, json_schema_extra=NOT_IN_KEY)
    simulated_tool_seconds: float = Field(default=0.0, ge=0)
