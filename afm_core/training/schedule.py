"""The learning rate, a pure function of the step: warm-up, then a cosine (SFT) or constant (RL)."""

import math

from afm_core.config import RlConfig, SftConfig


def learning_rate(step: int, total_steps: int, config: SftConfig) -> float:
    """The learning rate of optimizer step `step` (from 0) of `total_steps`.

    Warm-up takes `round(warmup_share * total_steps)` steps and never uses 0: step s of w has (s + 1) / w of the
    peak. The last step has exactly `final_learning_rate_share` of it.
    """
    assert 0 <= step < total_steps, f"step {step} of {total_steps}"
    peak = config.learning_rate
    warmup = round(config.warmup_share * total_steps)
    if step < warmup:
        return peak * (step + 1) / warmup
    final = peak * config.final_learning_rate_share
    rest = total_steps - warmup
    # The first step after the warm-up still has the peak; a single remaining step keeps it.
    progress = (step - warmup) / (rest - 1) if rest > 1 else 0.0
    return final + (peak - final) * 0.5 * (1.0 + math.cos(math.pi * progress))


def constant_learning_rate(step: int, config: RlConfig) -> float:
    """The learning rate of RL step `step` (from 0): (step + 1) / warmup_steps of the peak, then the peak."""
    assert step >= 0, f"step {step}"
    return config.learning_rate * min(1.0, (step + 1) / max(1, config.warmup_steps))
