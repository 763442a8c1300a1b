"""What depends on other rows: exact duplicates, down-sampling, the size of the mix, the guessable cap, copies.

Deterministic for a set of rows: rows are ordered by id, and every draw is a hash of the seed and the row's
id, so neither the order of the input nor the number of blocks matters, and another seed draws other rows.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial

from afm_core.config import CurationConfig
from afm_core.curation.reasons import Rejection, RejectReason
from afm_core.curation.rows import RowFacts


@dataclass(frozen=True)
class Decision:
    """The outcome: kept rows and rejections together are the input, always. `copies`: extra copies a kept
    digest gets."""

    kept: tuple[RowFacts, ...]
    rejected: tuple[Rejection, ...]
    copies: dict[str, int]

    def counts(self) -> dict[str, object]:
        """Figures for counts.json; `written` is kept plus copies."""
        reasons = Counter(rejection.reason for rejection in self.rejected)
        copies = sum(self.copies.values())
        return {
            "in": len(self.kept) + len(self.rejected),
            "kept": len(self.kept),
            "rejected": {reason.value: reasons[reason] for reason in RejectReason},
            "copies": copies,
            "written": len(self.kept) + copies,
            "kept_corrected": sum(row.corrected for row in self.kept),
            "kept_guessable": sum(row.guessable for row in self.kept),
            "kept_reflecting": sum(row.reflects for row in self.kept),
        }


def decide(rows: Iterable[RowFacts], config: CurationConfig, old: Collection[str] = ()) -> Decision:
    """Take the row verdicts and settle what depends on other rows. `old`: digests of the rows that are replayed.

    Order: duplicates (the first id stays), replay, reflection, size, guessable cap (over what is left), copies.
    """
    ordered = sorted(rows, key=lambda row: (row.id, row.digest))
    rejected = [Rejection(row.id, row.reason, row.detail) for row in ordered if row.reason is not None]
    left = [row for row in ordered if row.reason is None]
    for step in (_duplicates, partial(_replay, frozenset(old)), _reflection, _surplus, _guessable):
        refused = step(left, config)
        rejected += [refused[number] for number in sorted(refused)]
        left = [row for number, row in enumerate(left) if number not in refused]
    copies = {row.digest: config.correction_copies - 1 for row in left if row.corrected}
    rejected.sort(key=lambda one: (one.id, one.reason, one.detail))
    return Decision(tuple(left), tuple(rejected), {digest: count for digest, count in copies.items() if count})


def draw(seed: int, name: str) -> float:
    """A number in [0, 1) that follows from the seed and the name alone."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def _duplicates(rows: list[RowFacts], config: CurationConfig) -> dict[int, Rejection]:
    first: dict[str, str] = {}
    refused = {}
    for number, row in enumerate(rows):
        if row.text_key in first:
            refused[number] = Rejection(row.id, RejectReason.DUPLICATE, f"of {first[row.text_key]}")
        else:
            first[row.text_key] = row.id
    return refused


def _replay(old: frozenset[str], rows: list[RowFacts], config: CurationConfig) -> dict[int, Rejection]:
    """Keep so many old rows, drawn by id, that they are at most replay_share of the mix."""
    replayed = [number for number, row in enumerate(rows) if row.digest in old]
    limit = _limit(config.replay_share, len(rows) - len(replayed), len(replayed))
    drawn = sorted(replayed, key=lambda number: (draw(config.seed, f"replay {rows[number].id}"), number))
    return {number: Rejection(rows[number].id, RejectReason.NOT_REPLAYED) for number in drawn[limit:]}


def _limit(share: float, others: int, most: int) -> int:
    """How many of `most` rows may stand beside `others`, so that they are at most `share` of all."""
    return most if share == 1 else int(share * others / (1 - share) + 1e-9)


def _reflection(rows: list[RowFacts], config: CurationConfig) -> dict[int, Rejection]:
    return {
        number: Rejection(row.id, RejectReason.WITHOUT_REFLECTION)
        for number, row in enumerate(rows)
        if not row.reflects and draw(config.seed, f"reflection {row.id}") >= config.without_reflection_share
    }


def _surplus(rows: list[RowFacts], config: CurationConfig) -> dict[int, Rejection]:
    """Keep at most config.maximum rows, drawn by id."""
    limit = len(rows) if config.maximum is None else config.maximum
    drawn = sorted(range(len(rows)), key=lambda number: (draw(config.seed, f"surplus {rows[number].id}"), number))
    return {number: Rejection(rows[number].id, RejectReason.SURPLUS) for number in drawn[limit:]}


def _guessable(rows: list[RowFacts], config: CurationConfig) -> dict[int, Rejection]:
    """Keep so many guessable rows that they are at most guessable_share of the mix."""
    guessable = [number for number, row in enumerate(rows) if row.guessable]
    limit = _limit(config.guessable_share, len(rows) - len(guessable), len(guessable))
    drawn = sorted(guessable, key=lambda number: (draw(config.seed, f"guessable {rows[number].id}"), number))
    return {n: Rejection(rows[n].id, RejectReason.GUESSABLE_SURPLUS) for n in drawn[limit:]}
