"""The rl.json of a model that RL trained, for people: read, in words, as a table."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

FILE = "rl.json"
ROLLOUTS = Path("sidecar/rollouts")
"""A folder a step below a model artifact: trajectories.parquet, experience.parquet, step.json."""

END_WORDS = {
    "completed": "All steps were made",
    "no_signal": "Ended early, as no group had members with different rewards, however often prompts were drawn",
    "early_stop": "Ended early, without a new best on the dev tasks for long",
}


def load_rl(directory: Path) -> dict[str, Any] | None:
    """The rl.json of a model directory, None if RL did not make it. Raises ValueError if it cannot be read."""
    path = directory / FILE
    if not path.exists():
        return None
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if missing := {"steps", "evaluations", "registered_step"} - set(values):
        raise ValueError(f"{path} is no record of RL: {', '.join(sorted(missing))} missing")
    return values


def end_words(rl: Mapping[str, Any]) -> str:
    """Why RL ended, and which model it kept, in one sentence without a full stop."""
    step, last = rl["registered_step"], len(rl["steps"])
    which = "the model it was given, better on dev than any of its" if step == 0 else f"the model after step {step} of"
    return f"{END_WORDS.get(str(rl.get('end')), str(rl.get('end')))}; kept: {which} {last} steps"


def rl_table(rl: Mapping[str, Any]) -> "Table":
    """One row a step (rich): what was sampled, how the update went, and dev accuracy where it was measured.

    Live: groups with signal of all. Calls and tokens are means an episode, entropy and KL nats a token. The model that
    was kept has a star.
    """
    from rich.table import Table

    table = Table(title="reinforcement learning", title_justify="left", title_style="bold")
    names = ("step", "reward", "live", "loss", "entropy", "calls", "tokens", "KL", "dev")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    accuracy = {one["step"]: one["accuracy"] for one in rl["evaluations"]}
    if 0 in accuracy:
        table.add_row("0", *[""] * (len(names) - 2), _dev(accuracy, 0, rl["registered_step"]))
    for one in rl["steps"]:
        table.add_row(
            str(one["step"]),
            f"{one['reward']:.3f}",
            f"{one['live_groups']}/{one['groups']}",
            f"{one['loss']:.4f}",
            f"{one['entropy']:.3f}",
            f"{one['mean_tool_calls']:.1f}",
            f"{one['mean_model_tokens']:.0f}",
            f"{one['kl_sampler']:.0e}",
            _dev(accuracy, one["step"], rl["registered_step"]),
        )
    return table


def _dev(accuracy: Mapping[int, float | None], step: int, registered: int) -> str:
    if step not in accuracy:
        return ""
    value = accuracy[step]
    text = "n/a" if value is None else f"{value:.1%}"
    return f"{text} *" if step == registered else text
