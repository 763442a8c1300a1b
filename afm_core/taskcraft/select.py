"""Chooses tasks among candidates: exact counts a split, the hop mix, caps against guessing, shares held out.

A candidate belongs to one bin: (split, hops, comparison or not, held out or not), each with an exact quota. Two rules
hold for a whole split: at most `guessable_share` of its tasks have answers from a small set, and no open answer is
right for more than a few tasks (a soft rule: relaxed when a small corpus cannot fill the counts otherwise).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from afm_core.config import ConfigError, TasksConfig
from afm_core.data import AgentTask, Document, Split, is_comparison, is_guessable
from afm_core.taskcraft.gates import Rejection, check_task

_COMPARISON_HOPS = 2
_LEAST_REPEATS = 2
_REPEAT_SHARE = 0.02


class Bin(NamedTuple):
    """Tasks of one kind within a split."""

    split: Split
    hops: int
    comparison: bool
    held_out: bool


@dataclass
class Selection:
    """The chosen tasks, and how often each reason turned a candidate away."""

    tasks: list[AgentTask] = field(default_factory=list)
    rejections: Counter[str] = field(default_factory=Counter)


def quotas(config: TasksConfig) -> dict[Bin, int]:
    """How many tasks every bin gets; within a split they add up to its count.

    Raises:
        ConfigError: weights that do not add up to something, or more comparisons than the cap on guessing allows.
    """
    if not config.hop_weights or min(config.hop_weights) < 0 or sum(config.hop_weights) <= 0:
        raise ConfigError("tasks.hop_weights: give non-negative weights, at least one above 0")
    if config.comparison_share > config.guessable_share:
        raise ConfigError(
            f"tasks.comparison_share = {config.comparison_share} exceeds tasks.guessable_share = "
            f"{config.guessable_share}: the answer of a comparison is one of two and counts as guessable"
        )
    wanted: dict[Bin, int] = {}
    for split in Split:
        count = getattr(config.counts, split)
        hops = apportion(count, config.hop_weights)
        comparisons = min(math.floor(config.comparison_share * count), hops.get(_COMPARISON_HOPS, 0))
        for hop, number in hops.items():
            compared = comparisons if hop == _COMPARISON_HOPS else 0
            for is_compared, size in ((False, number - compared), (True, compared)):
                out = 0 if split in (Split.TRAIN, Split.DEV) else round(config.held_out_share * size)
                wanted[Bin(split, hop, is_compared, True)] = out
                wanted[Bin(split, hop, is_compared, False)] = size - out
    return {key: number for key, number in wanted.items() if number}


def apportion(count: int, weights: Sequence[float]) -> dict[int, int]:
    """Hops -> number of tasks by largest remainder; adds up to `count`."""
    shares = [count * weight / sum(weights) for weight in weights]
    numbers = [math.floor(share) for share in shares]
    order = sorted(range(len(shares)), key=lambda index: (numbers[index] - shares[index], index))
    for index in order[: count - sum(numbers)]:
        numbers[index] += 1
    return {index + 1: number for index, number in enumerate(numbers)}


def select(
    candidates: Iterable[AgentTask],
    documents: Sequence[Document],
    config: TasksConfig,
    rejections: Counter[str],
) -> Selection:
    """Take candidates until every quota is full.

    Raises:
        ConfigError: the candidates end first; it says how many tasks of each kind are possible.
    """
    state = _State(documents, config, rejections)
    for task in candidates:
        state.offer(task)
        if state.full:
            break
    state.settle()
    if not state.full:
        raise ConfigError(state.shortfall())
    tasks = sorted(state.tasks, key=lambda one: one.id)
    return Selection(tasks, rejections)


class _State:
    """What has been chosen so far."""

    def __init__(self, documents: Sequence[Document], config: TasksConfig, rejections: Counter[str]) -> None:
        self._documents = {document.id: document for document in documents}
        self._open = quotas(config)
        self._counts = config.counts
        self._guesses_left = {
            split: math.floor(config.guessable_share * getattr(config.counts, split)) for split in Split
        }
        # Comparisons have their exact quota inside the cap: keep their places free.
        for key, number in self._open.items():
            if key.comparison:
                self._guesses_left[key.split] -= number
        self._rejections = rejections
        self._seen: set[object] = set()
        self._answers: Counter[tuple[Split, str]] = Counter()
        self._covered: dict[Split, set[str]] = defaultdict(set)
        self._homes: dict[str, Split] = {}
        self._later: list[AgentTask] = []
        self.tasks: list[AgentTask] = []

    @property
    def full(self) -> bool:
        return not self._open

    def offer(self, task: AgentTask) -> None:
        """Take the task, keep it for later, or count why not."""
        reason = self._refusal(task)
        if reason is not None:
            self._rejections[reason] += 1
        elif self._must_wait(task):
            self._later.append(task)
        else:
            self._take(task)

    def settle(self) -> None:
        """Fill what is still open with tasks that had to wait: comparisons first need their components covered."""
        for strict in (True, False):
            waiting, self._later = self._later, []
            for task in waiting:
                reason = self._refusal(task)
                if reason is not None:
                    self._rejections[reason] += 1
                elif self._must_wait(task, strict):
                    self._later.append(task)
                else:
                    self._take(task)
        self._rejections[Rejection.NOT_NEEDED] += len(self._later)

    def shortfall(self) -> str:
        """What is missing, in words."""
        parts = []
        for split in Split:
            missing = {key: number for key, number in self._open.items() if key.split is split}
            if missing:
                wanted = getattr(self._counts, split)
                kinds = ", ".join(f"{number} more {_describe(key)}" for key, number in sorted(missing.items()))
                parts.append(
                    f"tasks.counts.{split} = {wanted}, but only {wanted - sum(missing.values())} are possible "
                    f"(wanted: {kinds})"
                )
        return "; ".join(parts) + ". Lower the counts, change tasks.hop_weights, or use a larger corpus."

    def _refusal(self, task: AgentTask) -> Rejection | None:
        key = _bin(task)
        if not self._open.get(key):
            return Rejection.NOT_NEEDED
        if task.question in self._seen or _path(task) in self._seen:
            return Rejection.DUPLICATE
        if is_guessable(task) and not key.comparison and self._guesses_left[task.split] < 1:
            return Rejection.GUESSABLE_CAP
        if any(self._homes.get(one, task.split) is not task.split for one in self._components(task)):
            return Rejection.FOREIGN
        return check_task(task, self._documents)

    def _must_wait(self, task: AgentTask, strict: bool = True) -> bool:
        if is_comparison(task):
            # Every component of a split has a plain task of its own there: `task.component` then tells them all.
            return not self._components(task) <= self._covered[task.split]
        most = max(_LEAST_REPEATS, math.ceil(_REPEAT_SHARE * getattr(self._counts, task.split)))
        return strict and not is_guessable(task) and self._answers[task.split, task.answers[0]] >= most

    def _take(self, task: AgentTask) -> None:
        key = _bin(task)
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]
        if is_guessable(task) and not key.comparison:
            self._guesses_left[task.split] -= 1
        self._seen.update((task.question, _path(task)))
        self._answers[task.split, task.answers[0]] += 1
        components = self._components(task)
        self._homes.update(dict.fromkeys(components, task.split))
        if not key.comparison:
            self._covered[task.split] |= components
        self.tasks.append(task)

    def _components(self, task: AgentTask) -> set[str]:
        documents = (self._documents.get(evidence.document_id) for evidence in task.evidence)
        return {task.component, *(document.component for document in documents if document is not None)}


def _bin(task: AgentTask) -> Bin:
    held_out = task.template is not None and task.template.held_out
    return Bin(task.split, task.difficulty.hops, is_comparison(task), held_out)


def _path(task: AgentTask) -> object:
    """What is asked, whatever the words: the starts and relations, in either order for a comparison."""
    steps = [(str(one.operation), one.relation, one.subject if not one.inputs else "") for one in task.solution]
    return tuple(sorted(steps)) if is_comparison(task) else tuple(steps) or task.question


def _describe(key: Bin) -> str:
    kind = "comparison" if key.comparison else f"task with {key.hops} hop{'s' if key.hops > 1 else ''}"
    return f"{kind} {'outside' if key.held_out else 'inside'} the trained templates"
