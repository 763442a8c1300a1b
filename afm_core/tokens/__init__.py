"""Tokens: safe encoding, the ledger of origins, loss masks (derived here and nowhere else), packing, the
mask gate.

Nothing here imports torch or transformers: tokenizers are passed in.
"""

from afm_core.tokens.encode import (
    chat_prompt_ids,
    encode_template,
    encode_text,
    end_of_turn_id,
    special_tokens,
)
from afm_core.tokens.gate import MaskError, check_masks, render_colored_sample
from afm_core.tokens.ledger import IGNORED_LABEL, NO_SEGMENT, Ledger, ledger_of
from afm_core.tokens.packing import length_buckets, pack

__all__ = [
    "IGNORED_LABEL",
    "NO_SEGMENT",
    "Ledger",
    "MaskError",
    "chat_prompt_ids",
    "check_masks",
    "encode_template",
    "encode_text",
    "end_of_turn_id",
    "ledger_of",
    "length_buckets",
    "pack",
    "render_colored_sample",
    "special_tokens",
]
