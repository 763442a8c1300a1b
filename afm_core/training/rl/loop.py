"""Reinforcement learning with tools, the loop.

For every step: give the sampler the policy's weights and make it prove that it uses them; sample a group of episodes
for each of some prompts, with real tools; let the verifier score them; turn the rewards into advantages within the
groups; update the policy on exactly the tokens that were sampled. Every few steps the policy solves the dev tasks
greedily, and the best model by that measure is what comes out at the end.

Departs from the textbook: groups in which nobody, or everybody, succeeded teach nothing and are replaced by new prompts
(dynamic sampling, DAPO); trajectories whose reward cannot be trusted never train; and where the next step could not be
trusted either (the sampler's log-probabilities disagree, nothing can be scored) the run stops instead of going on.

The loop knows nothing of Ray, DeepSpeed or files of the store: it is given a trainer, a sampler with its prompts, and
hooks. Its state is plain JSON; seeds follow from prompt positions, so a step that was interrupted is sampled again.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from afm_core.config import RlConfig
from afm_core.data import AgentTask, trajectories_table
from afm_core.store import write_table
from afm_core.training.errors import TrainingStopped
from afm_core.training.rl.experience import write_experience
from afm_core.training.rl.gather import Gathered, Rollouts
from afm_core.training.rl.groups import experience, masked_counts
from afm_core.training.rl.records import (
    End,
    RlState,
    collapse_warnings,
    evaluation_of,
    sampled_figures,
)
from afm_core.training.rl.sync import SyncReport
from afm_core.training.rl.update import UpdateRecord

_LOG = logging.getLogger(__name__)


class Learner(Protocol):
    """What the loop needs of the trainer (afm_core.training.rl.trainer)."""

    def update(self, directory: Path, step: int) -> UpdateRecord:
        """Train on a step directory."""
        ...


@dataclass
class Hooks:
    """What happens around the loop."""

    synchronise: Callable[[str], SyncReport]
    """Load the trainer's weights into the sampler and prove it; given the version before ('' at first)."""
    after_step: Callable[[Mapping[str, Any], Path], None] = lambda record, directory: None
    """A step's record and its directory (trajectories.parquet, experience.parquet, step.json)."""
    evaluated: Callable[[RlState], None] = lambda state: None
    """An evaluation was made (the last of the state's)."""
    keep_best: Callable[[int], None] = lambda step: None
    """The present weights are the best so far."""
    checkpoint: Callable[[RlState], None] = lambda state: None
    should_stop: Callable[[], bool] = lambda: False


def reinforce(
    learner: Learner,
    rollouts: Rollouts,
    dev: Sequence[AgentTask],
    directory: Path,
    config: RlConfig,
    state: RlState,
    hooks: Hooks,
) -> RlState:
    """Train from `state` to the end; returns the final state. `directory` gets a folder a step.

    Raises:
        TrainingStopped: told to stop; the last checkpoint is the place to go on from.
        TrainingFailed: loss or gradient not finite, or not one episode could be scored.
        SyncError: the sampler does not use the trainer's weights.
    """
    version = ""
    while True:
        report = hooks.synchronise(version)
        version = report.version
        rollouts.versions[version] = state.step
        if state.step % config.evaluate_every == 0 or state.step == config.steps:
            _evaluate(rollouts, dev, config, state, hooks)
        if state.step == config.steps:
            state.end = End.COMPLETED
        if state.end is not None:
            break
        gathered = rollouts.gather(state.step + 1)
        if not gathered.live:
            _evaluate(rollouts, dev, config, state, hooks)
            state.end = End.NO_SIGNAL
            break
        _train_step(learner, rollouts, gathered, report, directory, config, state, hooks)
    if not dev:
        hooks.keep_best(state.step)
    return state


def _train_step(
    learner: Learner,
    rollouts: Rollouts,
    gathered: Gathered,
    report: SyncReport,
    root: Path,
    config: RlConfig,
    state: RlState,
    hooks: Hooks,
) -> None:
    step = state.step + 1
    directory = root / f"step-{step:06d}"
    rows = experience(gathered.live, config)
    directory.mkdir(parents=True, exist_ok=True)
    write_table(trajectories_table(gathered.trajectories), directory / "trajectories.parquet")
    write_experience(rows, directory)
    rollouts.start_ahead()
    if not config.maximum_staleness:
        rollouts.sampler.rest()
    rollouts.beat(f"training on {len(rows)} trajectories")
    record = learner.update(directory, step)
    state.steps.append(_record(step, record, gathered, report, max(row.staleness for row in rows)))
    (directory / "step.json").write_text(json.dumps(state.steps[-1], indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for warning in collapse_warnings(state.steps):
        state.warnings.append(warning)
        _LOG.warning("%s", warning)
    state.cursor = rollouts.cursor.to_json()
    hooks.after_step(state.steps[-1], directory)
    stop = hooks.should_stop()
    if stop or step % config.checkpoint_every == 0:
        hooks.checkpoint(state)
    if stop:
        raise TrainingStopped(f"stopped after step {step} of {config.steps}")


def _evaluate(rollouts: Rollouts, dev: Sequence[AgentTask], config: RlConfig, state: RlState, hooks: Hooks) -> None:
    """Measure the loaded policy on dev, once a step; keep it if it is the best, stop if there was none for long."""
    step = state.step
    if not dev or state.evaluated(step):
        return
    state.evaluations.append(evaluation_of(step, rollouts.evaluate(dev)))
    hooks.evaluated(state)
    if state.best == step and step:
        hooks.keep_best(step)
    made = [one.step for one in state.evaluations]
    if config.patience and len(made) - 1 - made.index(state.best) >= config.patience and step < config.steps:
        state.end = End.EARLY_STOP


def _record(step: int, update: UpdateRecord, gathered: Gathered, report: SyncReport, staleness: int) -> dict[str, Any]:
    return {
        **asdict(update),
        "step": step,
        **sampled_figures(gathered.trajectories),
        "groups": len(gathered.live) + len(gathered.dead),
        "live_groups": len(gathered.live),
        "stale_groups": gathered.stale,
        "trajectories": sum(len(assessed.members) for assessed in gathered.live),
        "masked": masked_counts((*gathered.live, *gathered.dead)),
        "sampling_rounds": gathered.rounds,
        "staleness": staleness,
        "probe_difference": report.probe_difference,
    }
