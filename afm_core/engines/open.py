"""Choose an engine by configuration; heavy imports happen here and only for the kind that is asked for."""

from importlib.util import find_spec
from pathlib import Path

from afm_core.config import ConfigError, EngineConfig, EngineKind
from afm_core.engines.protocol import Engine


def open_engine(config: EngineConfig, model_directory: Path, policy_version: str, *, weights: bool = True) -> Engine:
    """The configured engine on the model in `model_directory`; `policy_version` is the digest of its weights.

    weights=False: they are replaced before the first request, so that transformers need not read them.

    The openai kind talks to `config.base_url`; the directory then only gives the tokenizer. Raises ConfigError for a
    missing package, a directory without a model, or settings that cannot work.
    """
    if config.kind == EngineKind.VLLM:
        if find_spec("vllm") is None:
            raise ConfigError(
                "engine.kind is 'vllm', but vllm is not installed: pip install 'chain-of-agents[gpu]' (or [cpu]), "
                "or set engine.kind to 'transformers'"
            )
        from afm_core.engines.vllm_engine import VllmEngine

        return VllmEngine(config, model_directory, policy_version, weights=weights)
    if config.kind == EngineKind.OPENAI:
        from afm_core.engines.openai_engine import OpenAIEngine

        return OpenAIEngine(config, model_directory, policy_version)
    from afm_core.engines.transformers_engine import TransformersEngine

    return TransformersEngine(config, model_directory, policy_version, weights=weights)
