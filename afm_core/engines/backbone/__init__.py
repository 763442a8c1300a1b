"""Language models behind any OpenAI-compatible server, by chat: the backbone of the teacher's agents and of judges.

Unlike the engines of this room it takes and returns text, never ids: nothing of it is trained on as sampled.
"""

from afm_core.engines.backbone.endpoint import endpoint_key
from afm_core.engines.backbone.messages import (
    PASSING,
    USABLE,
    Attempt,
    CallStatus,
    ChatReply,
    ChatRequest,
    ChatRole,
    Exchange,
    Message,
    Sampling,
    Tokens,
    ToolCall,
    ToolSpec,
)
from afm_core.engines.backbone.pool import TRIES, Backbone, BackboneGone, BackbonePool

__all__ = [
    "PASSING",
    "TRIES",
    "USABLE",
    "Attempt",
    "Backbone",
    "BackboneGone",
    "BackbonePool",
    "CallStatus",
    "ChatReply",
    "ChatRequest",
    "ChatRole",
    "Exchange",
    "Message",
    "Sampling",
    "Tokens",
    "ToolCall",
    "ToolSpec",
    "endpoint_key",
]
