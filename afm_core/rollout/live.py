"""Questions answered live: one thread owns engine and pool, callers get pieces of text as they come.

Every ticket has a `deliver` callback, called from that thread with Piece after Piece and at last one Trajectory. It
must not block. If the engine fails, every ticket gets a trajectory with status aborted, and `failure` says why.
"""

import itertools
import queue
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from afm_core.coa import render
from afm_core.config import AgentConfig
from afm_core.data import AgentTask, Origin, Status, Tag, Trajectory
from afm_core.engines import Engine
from afm_core.rollout.episode import Episode, Setting
from afm_core.rollout.pool import EpisodePool
from afm_core.tools.protocol import Tool

_IDLE_SECONDS = 0.2
_NO_ANSWER_KNOWN = ("(unknown)",)


@dataclass(frozen=True)
class Piece:
    """A piece of the running trajectory, as the model reads it (tags included)."""

    origin: Origin
    text: str


Deliver = Callable[[Piece | Trajectory], None]


@dataclass(eq=False)
class Ticket:
    """One question on its way. `cancel` ends it; its trajectory then comes with status aborted."""

    episode: Episode
    deliver: Deliver
    cancelled: bool = False
    _segments: int = field(default=1, init=False)
    _characters: int = field(default=0, init=False)

    def cancel(self) -> None:
        """Ask for the end; takes effect at the next step."""
        self.cancelled = True

    def show(self, partial: str) -> None:
        """Deliver what is new: whole segments, then the running turn as far as it is decoded."""
        for segment in self.episode.segments[self._segments :]:
            text = render(segment)
            self._emit(segment.origin, text)
            self._segments += 1
            self._characters = 0
        if self.episode.status is None:
            self._emit(Origin.SAMPLED, partial.rstrip("\ufffd"))

    def _emit(self, origin: Origin, text: str) -> None:
        start = self._characters if origin is Origin.SAMPLED else 0
        if len(text) > start:
            self.deliver(Piece(origin, text[start:]))
            self._characters = len(text) if origin is Origin.SAMPLED else 0


class LivePolicy:
    """A model with its tools, answering questions until `close`. Use it as a context manager."""

    def __init__(self, engine: Engine, tools: Mapping[Tag, Tool], agent: AgentConfig) -> None:
        self.failure = ""
        self.policy_version = engine.policy_version
        self._engine = engine
        self._setting = Setting(engine.tokenizer, agent, dict(tools), engine.policy_version, engine.max_length)
        self._slots = int(getattr(engine, "slots", 8))
        self._inbox: queue.Queue[Ticket] = queue.Queue()
        self._live: dict[str, Ticket] = {}
        self._closing = threading.Event()
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name="live-policy", daemon=True)
        self._thread.start()

    def __enter__(self) -> "LivePolicy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def waiting(self) -> int:
        """Questions that have no slot yet."""
        return self._inbox.qsize()

    def ask(
        self, question: str, deliver: Deliver, temperature: float = 0.0, seed: int = 0, total_tokens: int | None = None
    ) -> Ticket:
        """Begin a question. `total_tokens` lowers the episode's budget. Raises ValueError for an empty question,
        RuntimeError if the engine has failed.
        """
        if not question.strip():
            raise ValueError("the question is empty")
        if self.failure:
            raise RuntimeError(f"the engine has failed: {self.failure}")
        agent = self._setting.agent
        if total_tokens is not None:
            budget = agent.budget.model_copy(update={"total_tokens": min(total_tokens, agent.budget.total_tokens)})
            agent = agent.model_copy(update={"budget": budget})
        setting = replace(self._setting, agent=agent, temperature=temperature, seed=seed)
        # Numbers keep two equal questions apart; the seed alone decides what is sampled.
        episode = Episode(AgentTask.create(question, _NO_ANSWER_KNOWN), setting)
        episode.id = f"{episode.id}-{next(self._numbers)}"
        ticket = Ticket(episode, deliver)
        self._inbox.put(ticket)
        if not self._thread.is_alive():  # it ended between the check above and here
            self._refuse_rest()
        return ticket

    def close(self) -> None:
        """End what runs, and the thread. The engine stays the caller's."""
        self._closing.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        pool = EpisodePool(self._engine, deterministic=False)
        try:
            while not self._closing.is_set():
                self._admit(pool)
                for ticket in [one for one in self._live.values() if one.cancelled]:
                    pool.cancel(ticket.episode, "cancelled")
                finished = pool.tick()
                for ticket in self._live.values():
                    ticket.show(pool.partial_text(ticket.episode))
                self._deliver(finished)
            self._deliver(pool.abort("the server is closing"))
        except Exception as error:  # noqa: BLE001 - recorded in `failure`; every caller is told
            self.failure = "".join(traceback.format_exception_only(error)).strip()
            self._deliver(pool.abort(self.failure))
        finally:
            self._refuse_rest()

    def _admit(self, pool: EpisodePool) -> None:
        while len(self._live) < self._slots:
            try:
                ticket = self._inbox.get(timeout=0 if self._live else _IDLE_SECONDS)
            except queue.Empty:
                return
            self._live[ticket.episode.id] = ticket
            pool.start(ticket.episode)

    def _deliver(self, finished: list[Episode]) -> None:
        for episode in finished:
            self._live.pop(episode.id).deliver(_unscored(episode))

    def _refuse_rest(self) -> None:
        while True:
            try:
                ticket = self._inbox.get_nowait()
            except queue.Empty:
                return
            ticket.episode.end(Status.ABORTED, self.failure or "the server is closing")
            ticket.deliver(_unscored(ticket.episode))


def _unscored(episode: Episode) -> Trajectory:
    """A live question has no known answer, so there is nothing to score."""
    return episode.trajectory().model_copy(update={"reward": None, "verdicts": ()})
