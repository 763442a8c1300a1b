"""The stage `select`: which training tasks RL is given, measured with the models themselves.

Two gates of the paper, in order. The r_q gate: what the base model knows by heart teaches no use of tools. The
pass-rate band: what the policy never or always solves gives groups without signal. Departs from the paper in that the
first gate is the run's own base model, that a task it knows is not measured further, and that a task which could not be
scored is dropped under its own name instead of counting as failed.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

import pyarrow as pa

from afm_core.config import AgentConfig, ConfigError, EngineConfig, SelectionConfig
from afm_core.data import AgentTask, Split, Tag, documents_from_table, tasks_from_table, tasks_table
from afm_core.engines import Engine
from afm_core.evaluation.protocols import Protocol
from afm_core.evaluation.rows import EvaluationRow, row_of, rows_from_table, rows_table
from afm_core.evaluation.sampling import stratified_sample
from afm_core.evaluation.shards import Advance, Shard, run_shards
from afm_core.rollout import Mode, run_episodes
from afm_core.store import StageContext, StageResult, read_table, write_table
from afm_core.tools import build_tools
from afm_core.tools.protocol import Tool
from afm_core.training.rl.eligibility import finite_reward

_EPISODES_A_SHARD = 128
_CLOSED_BOOK_TEMPERATURE = 1.0

SELECTION_SCHEMA = pa.schema(
    [
        ("task_id", pa.string()),
        ("pass_rate", pa.float64()),
        ("known_rate", pa.float64()),
        ("episodes", pa.int32()),
        ("kept", pa.bool_()),
        ("reason", pa.string()),
    ],
    metadata={"afm.schema": "selection", "afm.schema_version": "1"},
)


class Dropped(StrEnum):
    """Why a task of the pool is not given to RL."""

    KNOWN = "known"
    """The base model answers it without tools more often than `selection.maximum_known`."""
    UNSCORED = "unscored"
    """Not one of its attempts could be scored: nothing is known about it."""
    TOO_HARD = "too_hard"
    """Its pass rate is below `selection.minimum_pass_rate`."""
    SOLVED = "solved"
    """Its pass rate is above `selection.maximum_pass_rate`."""


@dataclass(frozen=True)
class SelectionRow:
    """One task of the pool. Rates are shares of the scored attempts, None if not measured or never scored.

    episodes: scored attempts of the policy, the denominator of `pass_rate`. reason: see `Dropped`; None if kept.
    """

    task_id: str
    pass_rate: float | None
    known_rate: float | None
    episodes: int
    kept: bool
    reason: Dropped | None


@dataclass(frozen=True)
class Attempts:
    """Attempts at one task: how many could be scored, and how many of these were wholly right."""

    scored: int
    right: int

    @property
    def rate(self) -> float | None:
        """right / scored."""
        return self.right / self.scored if self.scored else None


def select(context: StageContext) -> StageResult:
    """Stage `select`: inputs tasks, corpus, policy, base; writes tasks.parquet (kept) and selection.parquet (pool).

    Every attempt is kept as a row in sidecar/episodes.parquet. No engine is opened for a gate that is off, nor for one
    whose shards are all sealed.

    Raises:
        ConfigError: no task is left. StageInterrupted: told to stop; finished shards are sealed.
    """
    config = context.section(SelectionConfig)
    tasks = tasks_from_table(read_table(context.inputs["tasks"].path / "tasks.parquet"))
    pool = stratified_sample([task for task in tasks if task.split is Split.TRAIN], config.pool, config.seed)
    closed_book = _closed_book(context, pool, config) if config.closed_book_samples else []
    known = attempts_of(closed_book) if config.closed_book_samples else None
    unknown = [task for task in pool if known is None or _closed_book_reason(known[task.id], config) is None]
    with_tools = _with_tools(context, unknown, config) if config.samples and unknown else []
    solved = attempts_of(with_tools) if config.samples else None
    rows = [judge_task(task.id, config, known, solved) for task in pool]
    return _write(context, pool, rows, [*closed_book, *with_tools])


def attempts_of(rows: Sequence[EvaluationRow]) -> dict[str, Attempts]:
    """Attempts by task id."""
    scored = Counter(row.task_id for row in rows if row.scored)
    right = Counter(row.task_id for row in rows if row.correct)
    return {row.task_id: Attempts(scored[row.task_id], right[row.task_id]) for row in rows}


def judge_task(
    task_id: str,
    config: SelectionConfig,
    known: Mapping[str, Attempts] | None,
    solved: Mapping[str, Attempts] | None,
) -> SelectionRow:
    """Whether a task stays. known: answers without tools, solved: the policy's episodes; None: that gate is off."""
    closed_book = known[task_id] if known is not None else None
    reason = _closed_book_reason(closed_book, config) if closed_book is not None else None
    attempts = solved[task_id] if solved is not None and reason is None else None
    if attempts is not None:
        reason = _pass_rate_reason(attempts, config)
    return SelectionRow(
        task_id,
        pass_rate=attempts.rate if attempts else None,
        known_rate=closed_book.rate if closed_book else None,
        episodes=attempts.scored if attempts else 0,
        kept=reason is None,
        reason=reason,
    )


def _closed_book_reason(attempts: Attempts, config: SelectionConfig) -> Dropped | None:
    if attempts.rate is None:
        return Dropped.UNSCORED
    return Dropped.KNOWN if attempts.rate > config.maximum_known else None


def _pass_rate_reason(attempts: Attempts, config: SelectionConfig) -> Dropped | None:
    if attempts.rate is None:
        return Dropped.UNSCORED
    if attempts.rate < config.minimum_pass_rate:
        return Dropped.TOO_HARD
    return Dropped.SOLVED if attempts.rate > config.maximum_pass_rate else None


@dataclass(frozen=True)
class _Gate:
    """How one gate puts its tasks: to which input's model, how often, and how."""

    protocol: Protocol
    model: str
    samples: int
    temperature: float
    tools: Mapping[Tag, Tool]


def _closed_book(context: StageContext, tasks: Sequence[AgentTask], config: SelectionConfig) -> list[EvaluationRow]:
    gate = _Gate(Protocol.CLOSED_BOOK, "base", config.closed_book_samples, _CLOSED_BOOK_TEMPERATURE, {})
    return _measure(context, tasks, gate, config.seed)


def _with_tools(context: StageContext, tasks: Sequence[AgentTask], config: SelectionConfig) -> list[EvaluationRow]:
    documents = documents_from_table(read_table(context.inputs["corpus"].path / "documents.parquet"))
    tools = build_tools(context.section(AgentConfig), documents, context.scratch / "tools")
    gate = _Gate(Protocol.AGENT, "policy", config.samples, config.temperature, tools)
    return _measure(context, tasks, gate, config.seed)


def _measure(context: StageContext, tasks: Sequence[AgentTask], gate: _Gate, seed: int) -> list[EvaluationRow]:
    """A row an attempt: every task is put `gate.samples` times, in sealed shards."""
    size = max(1, _EPISODES_A_SHARD // gate.samples)
    label = f"{gate.protocol}, {gate.samples} attempts a task"
    shards = [
        Shard(f"shards/{gate.protocol}-{number:04d}", label, tasks[start : start + size])
        for number, start in enumerate(range(0, len(tasks), size))
    ]
    with _lazy_engine(context, gate.model) as opened:
        directories = run_shards(context, shards, partial(_run_shard, context, gate, opened, seed))
    return [row for path in directories.values() for row in rows_from_table(read_table(path / "rows.parquet"))]


def _run_shard(
    context: StageContext,
    gate: _Gate,
    opened: Callable[[], Engine],
    seed: int,
    shard: Shard,
    directory: Path,
    advance: Advance,
) -> None:
    """Fill a shard's directory with rows.parquet. A reward that is no number counts as unscored."""
    closed_book = gate.protocol is Protocol.CLOSED_BOOK
    done = itertools.count(1)
    episodes = run_episodes(
        [task for task in shard.tasks for _ in range(gate.samples)],
        opened(),
        gate.tools,
        context.section(AgentConfig),
        mode=Mode.CLOSED_BOOK if closed_book else Mode.AGENT,
        temperature=gate.temperature,
        seed=seed,
        on_finished=lambda _: advance(next(done) / gate.samples),
        stopping=context.stopping,
    )
    by_id = {task.id: task for task in shard.tasks}
    rows = []
    for one in episodes:
        row = row_of(by_id[one.task_id], one, gate.protocol)
        sample = int(one.provenance["sample"])
        rows.append(replace(row, id=f"{row.id}-{sample:03d}", reward=finite_reward(one)))
    write_table(rows_table(rows), directory / "rows.parquet")


@contextmanager
def _lazy_engine(context: StageContext, name: str) -> Iterator[Callable[[], Engine]]:
    """Opens the engine on the input `name` when it is first asked for; closes it if it was."""
    model, opened = context.inputs[name], list[Engine]()

    def engine() -> Engine:
        from afm_core.engines import open_engine

        if not opened:
            opened.append(open_engine(context.section(EngineConfig), model.path, model.ref.digest))
        return opened[0]

    try:
        yield engine
    finally:
        for one in opened:
            one.close()


def _write(
    context: StageContext, pool: Sequence[AgentTask], rows: Sequence[SelectionRow], attempts: Sequence[EvaluationRow]
) -> StageResult:
    counts = Counter(row.reason or "kept" for row in rows)
    if not counts["kept"]:
        raise ConfigError(_nothing_kept(rows, attempts))
    by_id = {row.task_id: row for row in rows}
    kept = [_measured(task, by_id[task.id]) for task in pool if by_id[task.id].kept]
    ordered = sorted((asdict(row) for row in rows), key=lambda row: row["task_id"])
    table = pa.Table.from_pylist(ordered, schema=SELECTION_SCHEMA)
    if attempts:
        write_table(rows_table(attempts), context.output / "sidecar" / "episodes.parquet")
    return StageResult(
        metrics={
            "pool": len(rows),
            "kept": counts["kept"],
            **{f"dropped/{reason}": counts[reason] for reason in Dropped},
            "attempts": len(attempts),
            "unscored_attempts": sum(not row.scored for row in attempts),
            "mean_pass_rate": _mean([row.pass_rate for row in rows]),
            "mean_pass_rate_kept": _mean([row.pass_rate for row in rows if row.kept]),
            "mean_known_rate": _mean([row.known_rate for row in rows]),
        },
        rows={
            "tasks.parquet": write_table(tasks_table(kept), context.output / "tasks.parquet"),
            "selection.parquet": write_table(table, context.output / "selection.parquet"),
        },
    )


def _measured(task: AgentTask, row: SelectionRow) -> AgentTask:
    if row.pass_rate is None:
        return task
    difficulty = task.difficulty.model_copy(update={"solve_rate": row.pass_rate})
    return task.model_copy(update={"difficulty": difficulty})


def _nothing_kept(rows: Sequence[SelectionRow], attempts: Sequence[EvaluationRow]) -> str:
    """Which gate took how many, and what to do about the one that took most."""
    counts = Counter(row.reason for row in rows if row.reason is not None)
    if not counts:
        return "selection: there is no task of the train split to choose from; raise tasks.counts.train"
    ends = Counter(str(row.status) for row in attempts if not row.scored)
    mends = {
        Dropped.KNOWN: "raise selection.maximum_known, or set selection.closed_book_samples = 0",
        Dropped.UNSCORED: f"mend the tools or the grader: attempts ended as {_listed(ends)}",
        Dropped.TOO_HARD: "train longer before RL (sft.epochs), or lower selection.minimum_pass_rate",
        Dropped.SOLVED: "make harder tasks (tasks.hop_weights), or raise selection.maximum_pass_rate",
    }
    mend = mends[counts.most_common(1)[0][0]]
    return f"selection left no task for RL: of {len(rows)} in the pool {_listed(counts)}; {mend}"


def _listed(counts: Counter[Dropped] | Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))


def _mean(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return round(sum(known) / len(known), 6) if known else None
