"""Ad-hoc evaluations: a file of tasks put to a model, or a file of given answers scored without any model.

Both give the same JSON document: `{"benchmark", "n", "scored", "accuracy", "accuracy_floor", "interval", "status",
"rows"}`. With k samples a task, its score is the mean over its scored samples, and the interval is Wilson's over the
number of tasks, not of samples: samples of one task are not independent.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afm_core.config import ConfigError
from afm_core.data import (
    POLICY_FAILURES,
    SCORING_FAILURES,
    AgentTask,
    Status,
    Trajectory,
    Verifier,
    read_jsonl,
    task_id,
)
from afm_core.evaluation.metrics import wilson_interval
from afm_core.evaluation.rows import CORRECT
from afm_core.rewards import score
from afm_core.taskcraft import read_user_tasks, user_rows

NO_PREDICTION = "no_prediction"
"""In the place of a status: the file of predictions does not have this task."""


def read_tasks(path: Path) -> list[AgentTask]:
    """The tasks of a JSONL or parquet file in its order.

    Raises:
        ConfigError: an unreadable or empty file, a malformed row, the same task twice.
    """
    tasks = {task.id: task for task in read_user_tasks(path)}
    return [tasks[_id_of(row)] for _, row in user_rows(path)]


def read_predictions(path: Path, tasks: Sequence[AgentTask]) -> dict[str, tuple[str | None, Status]]:
    """task id -> (answer, status). A line has `prediction` and `id`, or `index` (0 is the first task of the file).

    `prediction` null is no answer. `status` may say how the attempt ended; without it, it completed.

    Raises:
        ConfigError: an unreadable or empty file, a malformed line, an unknown task or status, a task answered twice.
    """
    known = {task.id for task in tasks}
    predictions: dict[str, tuple[str | None, Status]] = {}
    for number, line in read_jsonl(path):
        place = f"{path}, row {number}"
        if not isinstance(line, dict) or "prediction" not in line:
            raise ConfigError(f'{place}: expected {{"id" or "index": ..., "prediction": ...}}')
        identifier = _task_of(line, tasks, place)
        if identifier not in known:
            raise ConfigError(f"{place}, field id: no task {identifier!r} in the data")
        if identifier in predictions:
            raise ConfigError(f"{place}: task {identifier} is answered twice")
        predictions[identifier] = _prediction(line, place)
    if not predictions:
        raise ConfigError(
            f"{path}: no predictions in it; write one JSON object a line, with id or index, and prediction"
        )
    return predictions


def score_predictions(
    benchmark: str, tasks: Sequence[AgentTask], predictions: Mapping[str, tuple[str | None, Status]]
) -> dict[str, Any]:
    """Score given answers. A task without one is wrong, not left out, and counted under NO_PREDICTION."""
    rows = []
    for index, task in enumerate(tasks):
        answer, status = predictions.get(task.id, (None, Status.COMPLETED))
        reward, reason = _reward(task, answer, status)
        if reward is None and status is Status.COMPLETED:
            status = Status.GRADER_ERROR
        row = _row(index, task, answer, status, reward) | {"reason": reason}
        missing = {} if task.id in predictions else {"status": NO_PREDICTION, "reason": "no prediction"}
        rows.append(row | missing)
    return _document(benchmark, rows)


def document_of(benchmark: str, tasks: Sequence[AgentTask], episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """The document of scored episodes, any number of them a task."""
    places = {task.id: (index, task) for index, task in enumerate(tasks)}
    rows = []
    for episode in episodes:
        index, task = places[episode.task_id]
        row = _row(index, task, episode.answer, episode.status, episode.reward)
        usage = {"tool_calls": episode.usage.tool_calls, "sampled_tokens": episode.usage.sampled_tokens}
        rows.append(row | usage | {"violations": list(episode.violations)})
    return _document(benchmark, rows)


def _document(benchmark: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    by_task: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        by_task[row["id"]].extend([] if row["reward"] is None else [float(row["correct"])])
    shares = [sum(verdicts) / len(verdicts) for verdicts in by_task.values() if verdicts]
    document: dict[str, Any] = {
        "benchmark": benchmark,
        "n": len(by_task),
        "scored": len(shares),
        "accuracy": sum(shares) / len(shares) if shares else None,
        "accuracy_floor": sum(row["correct"] for row in rows) / len(rows) if rows else None,
        "interval": list(wilson_interval(sum(shares), len(shares))),
        "status": {str(name): count for name, count in sorted(Counter(row["status"] for row in rows).items())},
    }
    samples = len(rows) // len(by_task) if by_task else 0
    if samples > 1:
        best = [any(verdicts) for verdicts in by_task.values() if verdicts]
        document |= {"samples": samples, "pass_at_k": sum(best) / len(best) if best else None}
    return document | {"rows": list(rows)}


def _row(index: int, task: AgentTask, answer: str | None, status: Status, reward: float | None) -> dict[str, Any]:
    return {
        "index": index,
        "id": task.id,
        "question": task.question,
        "answers": list(task.answers),
        "prediction": answer,
        "status": str(status),
        "reward": reward,
        "correct": reward is not None and reward >= CORRECT,
    }


def _reward(task: AgentTask, answer: str | None, status: Status) -> tuple[float | None, str]:
    if status in SCORING_FAILURES:
        return None, str(status)
    if status in POLICY_FAILURES:
        return 0.0, str(status)
    result = score(task, answer)
    return result.value, result.reason


def _task_of(line: Mapping[str, Any], tasks: Sequence[AgentTask], place: str) -> str:
    if line.get("id") is not None:
        return str(line["id"])
    index = line.get("index")
    if isinstance(index, bool) or not isinstance(index, int):
        raise ConfigError(f"{place}: give `id` (text) or `index` (whole number)")
    if not 0 <= index < len(tasks):
        raise ConfigError(f"{place}, field index: {index} is outside 0 to {len(tasks) - 1}")
    return tasks[index].id


def _prediction(line: Mapping[str, Any], place: str) -> tuple[str | None, Status]:
    value = line["prediction"]
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int | float)):
        raise ConfigError(f"{place}, field prediction: expected a text, a number or null, got {type(value).__name__}")
    try:
        status = Status(line.get("status") or Status.COMPLETED)
    except ValueError as error:
        raise ConfigError(f"{place}, field status: {error}; known: {', '.join(Status)}") from error
    return None if value is None else str(value), status


def _id_of(row: Mapping[str, Any]) -> str:
    """The id of a row that read_user_tasks accepted (it sorts by id; predictions may name places in the file)."""
    answers = row.get("answers") or [row["answer"]]
    return task_id(row["question"], tuple(answers), Verifier.model_validate(row.get("verifier") or {}))
