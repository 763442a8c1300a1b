"""vLLM behind the engine protocol: token prompts in, sampled ids and their log-probabilities out.

The engine runs inside this process (no engine-core child) unless several GPUs are asked for, so nothing is left behind
when the process ends. Log-probabilities are those of the sampling distribution ("processed"), as in
afm_core.engines.sampling. Stop strings keep the token that completed them. A session's cache is vLLM's prefix cache.
Checked against vLLM 0.32; on a CPU use fp32 (bf16 is slower there than it is worth).
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from afm_core.config import Dtype, EngineConfig
from afm_core.engines.detokenize import decode, end_ids
from afm_core.engines.protocol import FinishReason, Generation, GenerationRequest
from afm_core.engines.requests import check_directory, check_request

_KV_CACHE_GIB = "2"
_LLVMLITE = "llvmlite.binding.ffi"
_GPU_MEMORY_SHARE = 0.85


class VllmEngine:
    """One vLLM engine. Raises ConfigError if the directory holds no model.

    weights=False says that weights will be replaced before the first request: on GPUs the engine can then take them
    over NCCL (afm_core.engines.vllm_transfer). vLLM reads the directory's weights in any case.
    """

    def __init__(
        self, config: EngineConfig, model_directory: Path, policy_version: str, *, weights: bool = True
    ) -> None:
        check_directory(model_directory)
        _prepare_environment(config)
        from transformers import AutoTokenizer
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self.tokenizer: Any = AutoTokenizer.from_pretrained(model_directory)
        arguments = EngineArgs(
            model=str(model_directory),
            dtype="bfloat16" if config.dtype is Dtype.BF16 else "float32",
            max_model_len=config.max_length,
            max_num_seqs=config.slots,
            tensor_parallel_size=max(1, config.gpus),
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",
            generation_config="vllm",
            gpu_memory_utilization=_GPU_MEMORY_SHARE,
            disable_log_stats=True,
            weight_transfer_config={"backend": "nccl"} if config.gpus and not weights else None,
        )
        with _without_llvmlite():
            self._engine: Any = LLMEngine.from_engine_args(arguments)
        self.max_length = config.max_length
        self.slots = config.slots
        self._on_cpu = not config.gpus
        self.policy_version = policy_version
        self.weights_digest = ""
        self._vocabulary = int(self._engine.model_config.get_vocab_size())
        self._requests: dict[str, GenerationRequest] = {}
        self._partial: dict[str, str] = {}
        self._ends = end_ids(self.tokenizer, _generation_config(model_directory))

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request. Raises ValueError if it is malformed or cannot fit max_length."""
        from vllm import SamplingParams

        check_request(request, self.max_length, self._vocabulary)
        if request.id in self._requests:
            raise ValueError(f"request {request.id!r} is already pending")
        parameters = SamplingParams(
            temperature=request.temperature,
            seed=request.seed,
            max_tokens=min(request.max_new_tokens, self.max_length - len(request.prompt_ids)),
            stop=list(request.stop),
            stop_token_ids=sorted(self._ends),
            include_stop_str_in_output=True,
            logprobs=0,
        )
        self._engine.add_request(request.id, {"prompt_token_ids": list(request.prompt_ids)}, parameters)
        self._requests[request.id] = request

    def pending(self) -> int:
        """Requests submitted and not yet returned."""
        return len(self._requests)

    def partial_text(self, request_id: str) -> str:
        """What a running request has produced so far."""
        return self._partial.get(request_id, "")

    def step(self) -> Sequence[Generation]:
        """One iteration of the engine; returns the requests that finished."""
        if not self._requests:
            return []
        finished = []
        for output in self._engine.step():
            if output.request_id not in self._requests:
                continue
            completion = output.outputs[0]
            self._partial[output.request_id] = completion.text
            if output.finished:
                del self._requests[output.request_id], self._partial[output.request_id]
                finished.append(self._generation(output.request_id, completion))
        return finished

    def release(self, session: str) -> None:
        """Cancel the session's pending requests; its cached blocks age out of the prefix cache."""
        names = [name for name, request in self._requests.items() if request.session == session]
        if names:
            self._engine.abort_request(names)
        for name in names:
            del self._requests[name]
            self._partial.pop(name, None)

    def load_weights(self, directory: Path, policy_version: str) -> None:
        """Load weights in place and empty the prefix cache. Raises ValueError while a request is pending.

        The directory must hold a model of the same shape.
        """
        from afm_core.engines.weights import directory_digest  # imports torch: not before the environment is set

        if self._requests:
            raise ValueError(f"cannot load weights while {len(self._requests)} requests are pending")
        self._engine.collective_rpc("reload_weights", kwargs={"weights_path": str(directory)})
        if self._on_cpu:
            self._engine.apply_model(_repack_embeddings)
        self._empty_cache()
        self.policy_version = policy_version
        self.weights_digest = directory_digest(directory)

    def join_transfer(self, info: dict[str, Any]) -> None:
        """Join the trainer's group for weight transfers, leaving an earlier one."""
        self._engine.collective_rpc("shutdown_weight_transfer_engine")
        self._engine.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": info})

    def begin_transfer(self) -> None:
        """Get ready for new weights. Raises ValueError while a request is pending."""
        if self._requests:
            raise ValueError(f"cannot load weights while {len(self._requests)} requests are pending")
        self._engine.collective_rpc("start_weight_update")

    def receive_transfer(self, info: dict[str, Any]) -> None:
        """Receive the announced tensors; returns when they are there."""
        self._engine.collective_rpc("update_weights", kwargs={"update_info": info})

    def end_transfer(self, policy_version: str) -> None:
        """Put the received weights in place and empty the prefix cache. What they are is not known by a digest."""
        self._engine.collective_rpc("finish_weight_update")
        self._empty_cache()
        self.policy_version = policy_version
        self.weights_digest = ""

    def _empty_cache(self) -> None:
        if self._engine.reset_prefix_cache() is False:
            raise RuntimeError(
                "vLLM could not empty its prefix cache: keys and values of the old weights would be used"
            )

    def close(self) -> None:
        """Shut the engine down."""
        engine = self.__dict__.pop("_engine", None)
        if engine is not None:
            engine.engine_core.shutdown()

    def _generation(self, name: str, completion: Any) -> Generation:
        ids = tuple(completion.token_ids)
        logprobs = tuple(
            float(at[token_id].logprob) for at, token_id in zip(completion.logprobs or (), ids, strict=False)
        )
        text = decode(self.tokenizer, ids)
        if len(logprobs) != len(ids):
            error = f"vLLM returned {len(logprobs)} log-probabilities for {len(ids)} tokens"
            return Generation(name, (), (), "", FinishReason.ERROR, error=error)
        if completion.finish_reason == "length":
            return Generation(name, ids, logprobs, text, FinishReason.LENGTH)
        if completion.finish_reason == "stop" and isinstance(completion.stop_reason, str):
            return Generation(name, ids, logprobs, text, FinishReason.STOP, completion.stop_reason)
        if completion.finish_reason == "stop":
            return Generation(name, ids, logprobs, text, FinishReason.END)
        error = f"vLLM ended the request with {completion.finish_reason!r}"
        return Generation(name, ids, logprobs, text, FinishReason.ERROR, error=error)


def _prepare_environment(config: EngineConfig) -> None:
    """What vLLM reads from the environment when it is imported; values that are set already win."""
    values = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output is for the answer of a command
        "HF_HUB_OFFLINE": "1",
    }
    if config.gpus <= 1:
        values["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if not config.gpus:
        cores = sorted(os.sched_getaffinity(0))[: config.threads]
        values |= {
            "OMP_NUM_THREADS": str(config.threads),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_CPU_KVCACHE_SPACE": _KV_CACHE_GIB,
        }
    for name, value in values.items():
        os.environ.setdefault(name, value)


@contextmanager
def _without_llvmlite() -> Iterator[None]:
    """Hide llvmlite's library object while vLLM starts.

    On a CPU vLLM 0.32 looks for kernels in every imported module, and that object answers any attribute, `__dict__`
    too, with a function of its own: vLLM then fails with "'_lib_fn_wrapper' object has no attribute 'get'". Whatever
    uses numba imports it.
    """
    module = sys.modules.pop(_LLVMLITE, None)
    try:
        yield
    finally:
        if module is not None:
            sys.modules[_LLVMLITE] = module


def _repack_embeddings(model: Any) -> None:
    """Pack the output head again after a reload.

    On a CPU a head that is tied to the embedding has a packed copy of its own. A reload fills the shared weight but
    leaves that copy (vLLM 0.32): without this the head would silently stay the old one.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, UnquantizedEmbeddingMethod) and hasattr(module, "cpu_linear"):
            method.process_weights_after_loading(module)


def _generation_config(directory: Path) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig.from_pretrained(directory) if (directory / "generation_config.json").is_file() else None
