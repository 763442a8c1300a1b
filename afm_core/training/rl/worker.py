"""What one process of an RL job does: load, resume, and on rank 0 run the loop; the other ranks follow.

torch.distributed is initialised by then. Like afm_core.training.worker it takes plain values and can be run without
Ray. A watchdog ends a process that makes no progress and leaves every thread's stack in the channel's directory.
"""

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from afm_core.coa import grammar_for, prompt
from afm_core.config import RunConfig
from afm_core.data import AgentTask, Split, Tag, tasks_from_table
from afm_core.evaluation.sampling import stratified_sample
from afm_core.rollout.sampler import Sampler
from afm_core.store import read_table
from afm_core.tokens import chat_prompt_ids
from afm_core.training.channel import Channel
from afm_core.training.checkpoints import checkpoint_name, read_progress
from afm_core.training.deepspeed_engine import DeepSpeedEngine, load_for_training
from afm_core.training.errors import TrainingStopped
from afm_core.training.export import save_model
from afm_core.training.ranks import memory, wait_for_sealing
from afm_core.training.rl.cursor import Cursor, PromptOrder
from afm_core.training.rl.gather import Rollouts
from afm_core.training.rl.loop import Hooks, reinforce
from afm_core.training.rl.policy import PolicyLoss
from afm_core.training.rl.records import RlState
from afm_core.training.rl.reference import FrozenReference
from afm_core.training.rl.samplers import open_sampler
from afm_core.training.rl.sync import SyncReport, TrainerWeights, probe_prompt, synchronise
from afm_core.training.rl.trainer import GlooLink, Trainer
from afm_core.training.rl.watchdog import STACKS, Watchdog

_TELL_SECONDS = 1.0


@dataclass(frozen=True)
class RlJob:
    """An RL job. Paths as text: the policy's model directory, tasks of all splits, the selected tasks, the corpus, the
    channel's directory, a checkpoint to resume from (or none). config: the resolved RunConfig.
    """

    config: dict[str, Any]
    policy: str
    version: str
    tasks: str
    selected: str
    documents: str
    directory: str
    resume: str | None
    provenance: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """JSON values, for Ray Train's `train_loop_config`."""
        return asdict(self)


def run(values: dict[str, Any]) -> None:
    """Run the job on this rank. Rank 0 reports through the channel; errors propagate to Ray Train."""
    job = RlJob(**values)
    config = RunConfig.model_validate(job.config)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(config.rl.threads)
    model = load_for_training(Path(job.policy), config.rl)
    engine = DeepSpeedEngine(PolicyLoss(model, config.rl), config.rl)
    reference = FrozenReference(Path(job.policy), config.rl, engine.device) if config.rl.kl_coefficient else None
    trainer = Trainer(engine, config.rl, GlooLink(), reference)
    if job.resume is not None:
        engine.load(Path(job.resume))
    if engine.rank:
        trainer.follow()
        return
    _Conductor(job, config, trainer).run()


class _Conductor:
    """Rank 0: what the loop is given, and what becomes of its results."""

    def __init__(self, job: RlJob, config: RunConfig, trainer: Trainer) -> None:
        self._job = job
        self._config = config
        self._trainer = trainer
        self._channel = Channel(Path(job.directory))
        self._state = RlState.from_json(read_progress(Path(job.resume))) if job.resume else RlState()
        self._watchdog = Watchdog(self._channel.directory / STACKS, config.rollout.stall_seconds)
        self._began = time.monotonic()
        self._told = 0.0

    def run(self) -> None:
        """Run the loop to its end and report it."""
        self._report("started", step=self._state.step, steps=self._config.rl.steps, pid=os.getpid())
        sampler = self._open_sampler()
        try:
            rollouts = self._rollouts(sampler)
            hooks = Hooks(
                synchronise=lambda version: self._synchronise(sampler, version),
                after_step=self._after_step,
                evaluated=self._evaluated,
                keep_best=self._keep_best,
                checkpoint=self._checkpoint,
                should_stop=self._channel.stop_asked,
            )
            directory = self._channel.directory / "steps"
            reinforce(self._trainer, rollouts, self._dev, directory, self._config.rl, self._state, hooks)
        except TrainingStopped as stopped:
            self._trainer.end()
            self._report("stopped", message=str(stopped))
            return
        finally:
            sampler.close()
            self._watchdog.close()
        self._trainer.end()
        self._report("finished", state=self._state.to_json(), registered_step=self._state.best)

    def _open_sampler(self) -> Sampler:
        scratch = self._channel.directory / "sampler"
        return open_sampler(self._config, Path(self._job.policy), self._job.version, Path(self._job.documents), scratch)

    def _rollouts(self, sampler: Sampler) -> Rollouts:
        config = self._config
        return Rollouts(
            sampler,
            PromptOrder.of(self._selected, config.rl.seed, config.selection.curriculum),
            Cursor.from_json(self._state.cursor) if self._state.cursor else Cursor(),
            {task.id: task for task in self._selected},
            config.rl,
            config.agent,
            beat=self._beat,
            should_stop=self._channel.stop_asked,
        )

    @cached_property
    def _selected(self) -> list[AgentTask]:
        return tasks_from_table(read_table(Path(self._job.selected)))

    @cached_property
    def _dev(self) -> list[AgentTask]:
        tasks = [task for task in tasks_from_table(read_table(Path(self._job.tasks))) if task.split is Split.DEV]
        return list(stratified_sample(tasks, self._config.rl.dev_limit, self._config.rl.seed))

    def _synchronise(self, sampler: Sampler, previous: str) -> SyncReport:
        self._beat("giving the sampler new weights")
        policy, root = Path(self._job.policy), self._channel.directory / "sync"
        weights = TrainerWeights(self._trainer.state(), policy, root, self._dtype)
        tolerance = self._config.rl.probe_tolerance
        return synchronise(sampler, weights, previous, self._trainer.score, self._probe, tolerance)

    @cached_property
    def _probe(self) -> list[int]:
        """Prompts of dev tasks (or selected tasks): real, and the same for the whole training."""
        from transformers import AutoTokenizer

        tasks = sorted(self._dev or self._selected, key=lambda task: task.id)
        agent, tokenizer = self._config.agent, AutoTokenizer.from_pretrained(self._job.policy)
        tools = [Tag(tag) for tag in agent.tools]
        texts = (prompt(task.question, grammar_for(agent.grammar), agent.prompt, tools) for task in tasks)
        return probe_prompt(chat_prompt_ids(tokenizer, text) for text in texts)

    @property
    def _dtype(self) -> str:
        return "bfloat16" if self._config.rl.dtype == "bf16" else "float32"

    def _after_step(self, record: Mapping[str, Any], directory: Path) -> None:
        self._watchdog.beat()
        now = time.monotonic()
        self._report("step", record=dict(record), rollouts=str(directory), seconds=round(now - self._began, 3))
        self._began = now

    def _evaluated(self, state: RlState) -> None:
        self._report("evaluated", evaluation=asdict(state.evaluations[-1]))

    def _keep_best(self, step: int) -> None:
        """Leave the present weights as a model directory that the stage seals."""
        path = self._channel.directory / "best" / checkpoint_name(step)
        save_model(self._trainer.state(), Path(self._job.policy), path, self._job.provenance, self._dtype)
        self._report("best", step=step, path=str(path))

    def _checkpoint(self, state: RlState) -> None:
        wait_for_sealing(0, self._channel)
        path = self._trainer.checkpoint(self._channel.checkpoints, state)
        self._report("checkpoint", step=state.step, name=path.name, best=state.best, loss=state.steps[-1]["loss"])

    def _beat(self, message: str) -> None:
        """There was progress; told to the stage at most once a second."""
        self._watchdog.beat()
        if time.monotonic() - self._told >= _TELL_SECONDS:
            self._told = time.monotonic()
            self._channel.send("progress", message=message)

    def _report(self, kind: str, **values: Any) -> None:
        self._channel.send(kind, **values, **memory())
