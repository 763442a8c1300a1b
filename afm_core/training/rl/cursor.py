"""The exactly-once cursor over training prompts.

The usual dataloader state is one number, the next prompt; resumed, it forgets the prompts that were handed out and not
yet trained, and in asynchronous training those are the long ones (NeMo-RL#3599: about 30% skipped). Here a position is
outstanding until it is consumed with an outcome, and a resumed cursor hands the outstanding ones out again, first.
"""

import hashlib
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, Self

from afm_core.config import ConfigError
from afm_core.data import AgentTask


class PromptOutcome(StrEnum):
    """What became of a prompt that was handed out."""

    TRAINED = "trained"
    """Its group had signal and was trained."""
    SMALL_GROUP = "small_group"
    """Too few members of its group could train."""
    NO_SIGNAL = "no_signal"
    """All rewards of its group were equal."""


class PromptOrder:
    """position -> task id: every epoch is a permutation of all tasks, and a pure function of ids, seed and epoch.

    solve_rates: task id -> measured solve rate; given, every epoch runs from the easiest task to the hardest
    (curriculum), ties in seeded order. Raises ValueError if there are no tasks, or one id twice; ConfigError if a task
    has no measured solve rate.
    """

    def __init__(
        self, task_ids: Sequence[str], seed: int, solve_rates: Mapping[str, float | None] | None = None
    ) -> None:
        if not task_ids or len(set(task_ids)) != len(task_ids):
            raise ValueError(f"an order of prompts needs tasks, each once; got {len(task_ids)} ids")
        if solve_rates is not None:
            unmeasured = [one for one in task_ids if solve_rates.get(one) is None]
            if unmeasured:
                raise ConfigError(
                    f"selection.curriculum orders tasks by solve rate, but {len(unmeasured)} of {len(task_ids)} have "
                    f"none (first: {unmeasured[0]}); set selection.samples to measure them"
                )
        self._ids = tuple(task_ids)
        self._seed = seed
        self._rates = None if solve_rates is None else {one: float(solve_rates[one] or 0.0) for one in task_ids}
        self._permutation = lru_cache(maxsize=4)(self._permute)

    @classmethod
    def of(cls, tasks: Sequence[AgentTask], seed: int, curriculum: bool) -> Self:
        """The order of tasks, by their `difficulty.solve_rate` if `curriculum`."""
        rates = {task.id: task.difficulty.solve_rate for task in tasks} if curriculum else None
        return cls([task.id for task in tasks], seed, rates)

    def __len__(self) -> int:
        """Prompts in one epoch."""
        return len(self._ids)

    def __getitem__(self, position: int) -> str:
        """The task id at a position, 0 and up without end. Raises IndexError for a negative one."""
        if position < 0:
            raise IndexError(f"positions of prompts start at 0, not {position}")
        epoch, place = divmod(position, len(self._ids))
        return self._permutation(epoch)[place]

    def _permute(self, epoch: int) -> tuple[str, ...]:
        def place(task_id: str) -> tuple[float, bytes]:
            easy = 0.0 if self._rates is None else -self._rates[task_id]
            return easy, hashlib.sha256(f"{self._seed}:{epoch}:{task_id}".encode()).digest()

        return tuple(sorted(self._ids, key=place))


class Cursor:
    """Which positions of the order were handed out and consumed. Its state is small JSON, for a checkpoint.

    Invariant: outstanding and consumed positions are disjoint, and together they are 0 .. next_position - 1.
    """

    def __init__(self) -> None:
        self._next = 0
        self._outstanding: set[int] = set()
        self._again: deque[int] = deque()
        self._outcomes: Counter[str] = Counter()

    @property
    def next_position(self) -> int:
        """The first position that was never handed out."""
        return self._next

    @property
    def outstanding(self) -> tuple[int, ...]:
        """Positions that were handed out and not consumed, ascending."""
        return tuple(sorted(self._outstanding))

    @property
    def outcomes(self) -> dict[str, int]:
        """Consumed positions by outcome."""
        return dict(sorted(self._outcomes.items()))

    def take(self, number: int) -> list[int]:
        """Hand out `number` positions: first those a resumed run or `put_back` left outstanding, then new ones."""
        again = [self._again.popleft() for _ in range(min(number, len(self._again)))]
        new = list(range(self._next, self._next + number - len(again)))
        self._next += len(new)
        self._outstanding.update(new)
        return again + new

    def consume(self, position: int, outcome: PromptOutcome) -> None:
        """Done with a position, for good. Raises ValueError if it is not in flight (never handed out, or consumed)."""
        self._check(position)
        self._outstanding.remove(position)
        self._outcomes[outcome.value] += 1

    def put_back(self, positions: Sequence[int]) -> None:
        """Positions that are in flight and must be sampled anew (e.g. too stale); `take` hands them out first."""
        for position in positions:
            self._check(position)
            self._again.append(position)

    def to_json(self) -> dict[str, Any]:
        """The state as JSON values. What is in flight at that moment is outstanding in it."""
        return {"next": self._next, "outstanding": list(self.outstanding), "outcomes": self.outcomes}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Self:
        """A cursor that goes on from a state; its outstanding positions are handed out again first, ascending.

        Raises ValueError if the state is no cursor's.
        """
        cursor = cls()
        try:
            cursor._next = int(state["next"])
            cursor._outstanding = {int(one) for one in state["outstanding"]}
            cursor._outcomes = Counter({PromptOutcome(key).value: int(n) for key, n in state["outcomes"].items()})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no state of a prompt cursor: {state!r}") from error
        consumed = cursor._outcomes.total()
        known = all(0 <= one < cursor._next for one in cursor._outstanding)
        if not known or consumed + len(cursor._outstanding) != cursor._next:
            raise ValueError(f"a prompt cursor that lost count: {state!r}")
        cursor._again = deque(sorted(cursor._outstanding))
        return cursor

    def _check(self, position: int) -> None:
        if position not in self._outstanding or position in self._again:
            raise ValueError(f"position {position} is not in flight: it was never handed out, or it was consumed")
