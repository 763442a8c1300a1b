"""The gate before training: a batch whose loss mask cannot be right is refused, and a sample is shown."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from afm_core.data import Origin
from afm_core.tokens.ledger import Ledger

_RESET = "\x1b[0m"
_COLORS: dict[str, str] = {
    "learned": "\x1b[32m",
    "mistake": "\x1b[33m",
    "tool": "\x1b[36m",
    "other": "\x1b[90m",
}


class MaskError(ValueError):
    """A loss mask that must not be trained with."""


def check_masks(
    ledgers: Sequence[Ledger],
    masks: Sequence[Sequence[int]] | None = None,
    *,
    mask_observations: bool = True,
    train_mistakes: bool = False,
) -> float:
    """Refuse a batch that no correct mask gives; returns the learned share of its tokens, in (0, 1).

    masks: what will really be trained, one entry a token (default: derived from the ledgers). Raises
    MaskError if a mask has another length than its ledger, if 0% or 100% of the batch is learned, or if a
    prompt, template or (with mask_observations) tool token is.
    """
    if masks is None:
        masks = [ledger.mask(mask_observations, train_mistakes) for ledger in ledgers]
    if len(masks) != len(ledgers):
        raise MaskError(f"{len(ledgers)} trajectories but {len(masks)} masks")
    never = {Origin.PROMPT, Origin.TEMPLATE} | ({Origin.TOOL} if mask_observations else set())
    for row, (ledger, mask) in enumerate(zip(ledgers, masks, strict=True)):
        if len(mask) != len(ledger):
            raise MaskError(f"trajectory {row}: {len(ledger)} tokens but a mask of {len(mask)}")
        for place, (origin, learned) in enumerate(zip(ledger.origins, mask, strict=True)):
            if learned and origin in never:
                raise MaskError(f"trajectory {row}, token {place}: a {origin} token would be learned")
    total = sum(len(mask) for mask in masks)
    learned_tokens = sum(1 for mask in masks for entry in mask if entry)
    if learned_tokens in (0, total):
        share = "none" if learned_tokens == 0 else "all"
        raise MaskError(f"{share} of the {total} tokens of this batch would be learned: the mask is wrong")
    return learned_tokens / total


def render_colored_sample(
    ledger: Ledger, tokenizer: Any, *, mask_observations: bool = True, train_mistakes: bool = False
) -> str:
    """A trajectory for the log, in terminal colours: learned green, unlearned mistakes yellow, tools cyan,
    rest grey.
    """
    mask = ledger.mask(mask_observations, train_mistakes)
    kinds = [_kind(ledger, place, learned) for place, learned in enumerate(mask)]
    parts = []
    for kind, places in groupby(range(len(ledger)), key=kinds.__getitem__):
        text = tokenizer.decode([ledger.ids[place] for place in places], skip_special_tokens=False)
        parts.append(f"{_COLORS[kind]}{text}{_RESET}")
    return "".join(parts)


def _kind(ledger: Ledger, place: int, learned: int) -> str:
    if learned:
        return "learned"
    if ledger.mistakes[place]:
        return "mistake"
    return "tool" if ledger.origins[place] is Origin.TOOL else "other"
