"""One protocol for what generates tokens, and three engines behind it: transformers, vllm, openai.

`open_engine` imports only the engine that is asked for; this room itself imports no torch.
"""

from afm_core.engines.open import open_engine
from afm_core.engines.protocol import Engine, FinishReason, Generation, GenerationRequest

__all__ = ["Engine", "FinishReason", "Generation", "GenerationRequest", "open_engine"]
