"""The token ledger: every token of a trajectory with its origin. Loss masks are derived here and nowhere
else.

Token in, token out: sampled ids are the ids that are trained; nothing is decoded and encoded again. Teacher
and tool text is encoded a segment at a time, so that no token crosses the border of two origins. All arrays
always have one length.
"""

from collections.abc import Sequence
from typing import Any

from afm_core.coa import render
from afm_core.data import Origin, Segment, Status, Trajectory
from afm_core.tokens.encode import encode_template, encode_text, end_of_turn_id

NO_SEGMENT = -1
"""Tokens that belong to no segment of the trajectory: the prompt, an appended end of turn."""

IGNORED_LABEL = -100
"""The label of a token without loss (PyTorch's ignore_index)."""

_LEARNED = frozenset({Origin.SAMPLED, Origin.TEACHER})


class Ledger:
    """Parallel arrays, one entry a token: ids, origins, logprobs (None where nothing was sampled),
    mistakes, segments.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.origins: list[Origin] = []
        self.logprobs: list[float | None] = []
        self.mistakes: list[bool] = []
        self.segments: list[int] = []
        """Index of the trajectory's segment a token came from, NO_SEGMENT for none."""

    def __len__(self) -> int:
        return len(self.ids)

    def append(
        self,
        origin: Origin,
        ids: Sequence[int],
        logprobs: Sequence[float] | None = None,
        mistake: bool = False,
        segment: int = NO_SEGMENT,
    ) -> None:
        """Add tokens of one origin. Raises ValueError if logprobs are given in another number than ids."""
        if logprobs is not None and len(logprobs) != len(ids):
            raise ValueError(f"{len(ids)} token ids but {len(logprobs)} log-probabilities")
        count = len(ids)
        self.ids.extend(ids)
        self.origins.extend([origin] * count)
        self.logprobs.extend(logprobs if logprobs is not None else [None] * count)
        self.mistakes.extend([mistake] * count)
        self.segments.extend([segment] * count)
        self._check()

    def extend(self, other: "Ledger") -> None:
        """Add all tokens of another ledger, e.g. to pack trajectories into one row; origins stay with their
        tokens.
        """
        self.ids.extend(other.ids)
        self.origins.extend(other.origins)
        self.logprobs.extend(other.logprobs)
        self.mistakes.extend(other.mistakes)
        self.segments.extend(other.segments)
        self._check()

    def mask(self, mask_observations: bool = True, train_mistakes: bool = False) -> list[int]:
        """1 for a token that is learned, 0 for one that is not.

        Sampled and teacher tokens are learned, the end of turn included, except demonstrated mistakes
        (unless `train_mistakes`). Prompt and template tokens never are; tool tokens only if
        `mask_observations` is False.
        """
        learned = _LEARNED if mask_observations else _LEARNED | {Origin.TOOL}
        return [
            int(origin in learned and (train_mistakes or not mistake))
            for origin, mistake in zip(self.origins, self.mistakes, strict=True)
        ]

    def labels(self, mask_observations: bool = True, train_mistakes: bool = False) -> list[int]:
        """The id of every learned token, IGNORED_LABEL for the others; not shifted."""
        mask = self.mask(mask_observations, train_mistakes)
        return [id if learned else IGNORED_LABEL for id, learned in zip(self.ids, mask, strict=True)]

    def _check(self) -> None:
        lengths = {len(array) for array in (self.ids, self.origins, self.logprobs, self.mistakes, self.segments)}
        assert len(lengths) == 1, f"ledger arrays differ in length: {sorted(lengths)}"


def ledger_of(
    trajectory: Trajectory,
    tokenizer: Any,
    prompt_ids: Sequence[int] | None = None,
    *,
    append_end_of_turn: bool = True,
) -> Ledger:
    """The ledger of a trajectory. prompt_ids: see `chat_prompt_ids`; None takes the ids of its prompt
    segments.

    A completed trajectory ends with the end-of-turn token: if none was sampled it is appended, of the
    origin of the last learned segment. It has no log-probability then: RL passes append_end_of_turn=False.
    Raises ValueError for a sampled segment without token ids (they are never made up) and for teacher text
    that holds tags.
    """
    ledger = Ledger()
    if prompt_ids is not None:
        ledger.append(Origin.PROMPT, prompt_ids)
    last: Origin | None = None
    for index, segment in enumerate(trajectory.segments):
        if segment.origin is Origin.PROMPT and prompt_ids is not None:
            continue
        ids = _segment_ids(segment, tokenizer, index)
        logprobs = segment.logprobs if segment.origin is Origin.SAMPLED else None
        ledger.append(segment.origin, ids, logprobs, segment.mistake, index)
        last = segment.origin if segment.origin in _LEARNED else last
    if append_end_of_turn and last is not None and trajectory.status is Status.COMPLETED:
        end = end_of_turn_id(tokenizer)
        if ledger.ids[-1] != end:
            ledger.append(last, [end])
    return ledger


def _segment_ids(segment: Segment, tokenizer: Any, index: int) -> Sequence[int]:
    if segment.token_ids is not None:
        return segment.token_ids
    if segment.origin is Origin.SAMPLED:
        raise ValueError(f"segment {index} is sampled but has no token ids; they cannot be recovered from its text")
    if segment.origin is Origin.PROMPT:
        raise ValueError(f"segment {index} is a prompt without token ids; give prompt_ids")
    if segment.origin is Origin.TEMPLATE:
        return encode_template(tokenizer, segment.text)
    return encode_text(tokenizer, render(segment))
