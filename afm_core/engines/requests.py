"""What every engine refuses: a directory without a model, a malformed request."""

from math import isfinite
from pathlib import Path

from afm_core.config import ConfigError
from afm_core.engines.protocol import GenerationRequest


def check_directory(directory: Path) -> Path:
    """The directory. Raises ConfigError if it holds no Hugging Face model."""
    if not (directory / "config.json").is_file():
        raise ConfigError(f"{directory} holds no Hugging Face model: config.json is missing")
    return directory


def check_request(request: GenerationRequest, max_length: int, vocabulary: int) -> None:
    """Raise ValueError that names the fault of a request; `vocabulary` is the number of rows of the embedding."""
    where = f"request {request.id!r}"
    if not request.prompt_ids:
        raise ValueError(f"{where}: prompt_ids is empty")
    if len(request.prompt_ids) >= max_length:
        raise ValueError(f"{where}: a prompt of {len(request.prompt_ids)} ids cannot fit max_length {max_length}")
    if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < vocabulary:
        raise ValueError(f"{where}: prompt ids must lie in 0..{vocabulary - 1}")
    if request.max_new_tokens < 1:
        raise ValueError(f"{where}: max_new_tokens must be at least 1, not {request.max_new_tokens}")
    if not (isfinite(request.temperature) and request.temperature >= 0):
        raise ValueError(f"{where}: temperature must be finite and at least 0, not {request.temperature}")
