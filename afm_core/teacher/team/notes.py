"""The team's memory of one rollout: what was found, the latest in full, what is older as a rolling summary."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Note:
    """What one sub-task found, or why it did not."""

    goal: str
    text: str
    found: bool = True

    def line(self) -> str:
        """The note as a line."""
        return f"- {self.goal}: {'' if self.found else 'NOT FOUND. '}{self.text}"


@dataclass
class Notes:
    """Notes in the order of the plan. `summary` stands for those that were folded into it."""

    facts: tuple[str, ...] = ()
    summary: str = ""
    notes: list[Note] = field(default_factory=list)

    def text(self) -> str:
        """Everything that is known, as the agents read it."""
        lines = [*(f"- {fact}" for fact in self.facts), *([self.summary] if self.summary else [])]
        return "\n".join([*lines, *(note.line() for note in self.notes)]) or "(nothing yet)"

    def to_fold(self, characters: int, recent: int) -> str:
        """What is to be summarised now: all but the latest `recent` notes, if the whole is too long; else nothing."""
        if len(self.text()) <= characters or len(self.notes) <= recent:
            return ""
        older = self.notes[: len(self.notes) - recent]
        return "\n".join([*([self.summary] if self.summary else []), *(note.line() for note in older)])

    def fold(self, summary: str, recent: int) -> None:
        """Put a summary in the place of all but the latest `recent` notes."""
        self.summary = summary
        self.notes = self.notes[max(0, len(self.notes) - recent) :]
