"""Run in a process of its own by test_ray_sampler_vllm.py: vLLM behind a rollout worker's thread, without Ray.

The worker is the actor's class; Ray would only carry its calls. Prints a report as JSON.
"""

import json
import sys
from functools import partial
from pathlib import Path

from ray_samples import AGENT, make_tools

from afm_core.config import EngineConfig, EngineKind, RolloutConfig
from afm_core.data import AgentTask, Origin
from afm_core.engines import open_engine
from afm_core.rollout.ray_worker import RolloutWorker
from afm_core.rollout.sampler import EpisodeRequest

PROBE = list(range(20, 220))
CONFIG = EngineConfig(kind=EngineKind.VLLM, threads=1, slots=3, max_length=256)


class WorkerSampler:
    """The one worker as a sampler, for `synchronise`."""

    def __init__(self, worker):
        self.worker = worker

    def load(self, weights):
        return self.worker.call("load_directory", weights.directory(), weights.version)

    def probe(self, prompt_ids, tokens):
        return self.worker.call("probe", list(prompt_ids), tokens)


def outcome(sampler, weights, score):
    from afm_core.training.rl.sync import SyncError, synchronise

    try:
        return synchronise(sampler, weights, None, score, PROBE, 0.01).probe_difference
    except SyncError as error:
        return str(error)


def transfer_source_agrees_with_vllm(state):
    """What is announced is what is sent, by the check of vLLM's own sender; also the number of packed buffers."""
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine
    from vllm.distributed.weight_transfer.packed_tensor import pack_tensors

    from afm_core.engines.vllm_transfer import StateSource

    source = StateSource("cpu")
    source.state = state
    pairs = NCCLTrainerWeightTransferEngine._checked_iter(source, source.metadata())
    names, buffers = [], 0
    while (chunk := pack_tensors(pairs, lambda item: item[1], 20_000)) is not None:
        names += chunk.names
        buffers += 1
    return names == sorted(state), buffers


def main(first: Path, second: Path, root: Path) -> None:
    worker = RolloutWorker(
        partial(open_engine, CONFIG, first, "start", weights=False), make_tools, AGENT, RolloutConfig()
    )
    worker.call("pending")
    import torch
    from transformers import AutoModelForCausalLM

    from afm_core.training.rl.sync import TrainerWeights

    models = [AutoModelForCausalLM.from_pretrained(directory) for directory in (first, second)]
    states = [dict(model.named_parameters()) for model in models]
    weights = [TrainerWeights(states[0], first, root / "first"), TrainerWeights(states[1], second, root / "second")]

    def score_of(model):
        @torch.no_grad()
        def score(ids, prompt_length):
            logprobs = model(torch.tensor([list(ids)])).logits[0].log_softmax(-1)
            return [float(logprobs[at - 1, ids[at]]) for at in range(prompt_length, len(ids))]

        return score

    sampler = WorkerSampler(worker)
    report = {"first": outcome(sampler, weights[0], score_of(models[0]))}
    task = AgentTask.create("question?", ("x",))
    worker.call("start", [EpisodeRequest(str(n), task, n, n) for n in range(5)])
    report["while_running"] = outcome(sampler, weights[1], score_of(models[1]))
    ended = []
    while len(ended) < 5:
        ended += worker.poll(5.0).ended
    segments = [one for _, trajectory in ended for one in trajectory.segments if one.origin is Origin.SAMPLED]
    report["keys"] = sorted(key for key, _ in ended)
    report["versions_known"] = {one.policy_version for one in segments} <= {one.version for one in weights}
    report["statuses"] = sorted({trajectory.status for _, trajectory in ended})
    engine = worker.call("engine")
    real = engine._engine
    engine._engine = Unloaded(real)
    report["not_reloaded"] = outcome(sampler, weights[0], score_of(models[0]))
    engine._engine = real
    report["mended"] = outcome(sampler, weights[0], score_of(models[0]))
    real.reset_prefix_cache = lambda *_: True
    report["cache_kept"] = outcome(sampler, weights[1], score_of(models[1]))
    report["transfer"] = transfer_source_agrees_with_vllm(states[0])
    worker.call("close")
    sys.stdout.write("REPORT " + json.dumps(report) + "\n")


class Unloaded:
    """vLLM's engine whose reload does nothing and says nothing."""

    def __init__(self, engine):
        self._real = engine

    def __getattr__(self, name):
        return getattr(self._real, name)

    def collective_rpc(self, method, **arguments):
        return None

    def apply_model(self, function):
        return None


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
