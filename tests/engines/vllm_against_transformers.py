"""Run in a process of its own by test_vllm_engine.py: both engines on the same requests, then a report as JSON."""

import json
import sys
from pathlib import Path

import torch

from afm_core.config import EngineConfig, EngineKind
from afm_core.engines import GenerationRequest, open_engine


def run(engine, requests):
    for request in requests:
        engine.submit(request)
    done = {}
    while engine.pending():
        done.update({generation.request_id: generation for generation in engine.step()})
    return [done[request.id] for request in requests]


def greedy(count=8):
    shared = tuple(range(20, 60))
    return [
        GenerationRequest(f"g{n}", (*shared[: 10 + 4 * n], 70 + n), 16, stop=("never",), session=f"s{n}")
        for n in range(count)
    ]


def sampled(temperature):
    return [GenerationRequest(f"t{n}", (10, 11, 12 + n), 12, temperature=temperature, seed=n) for n in range(4)]


def main(first: Path, second: Path) -> None:
    from transformers import AutoModelForCausalLM

    shape = {"threads": 1, "slots": 4, "max_length": 128}
    vllm = open_engine(EngineConfig(kind=EngineKind.VLLM, **shape), first, "v1")
    ours = open_engine(EngineConfig(**shape), first, "v1")
    model = AutoModelForCausalLM.from_pretrained(first)
    report = {"divergences": [], "logprob_error": 0.0, "tempered_error": 0.0}
    for left, right, request in zip(run(vllm, greedy()), run(ours, greedy()), greedy(), strict=True):
        same = next((i for i, (a, b) in enumerate(zip(left.token_ids, right.token_ids, strict=False)) if a != b), None)
        for a, b in list(zip(left.logprobs, right.logprobs, strict=False))[:same]:
            report["logprob_error"] = max(report["logprob_error"], abs(a - b))
        if same is not None:
            with torch.inference_mode():
                ids = [*request.prompt_ids, *right.token_ids[:same]]
                top = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1).topk(2).values
            report["divergences"].append(float(top[0] - top[1]))
    for generation, request in zip(run(vllm, sampled(0.7)), sampled(0.7), strict=True):
        with torch.inference_mode():
            ids = torch.tensor([[*request.prompt_ids, *generation.token_ids]])
            logits = model(ids).logits[0, len(request.prompt_ids) - 1 : -1] / 0.7
        expected = logits.log_softmax(-1).gather(1, torch.tensor(generation.token_ids)[:, None])[:, 0]
        error = (expected - torch.tensor(generation.logprobs)).abs().max()
        report["tempered_error"] = max(report["tempered_error"], float(error))
    free = run(vllm, greedy())[3]
    pieces = [vllm.tokenizer.decode([token_id]) for token_id in free.token_ids]
    piece = next(text for text in pieces[3:] if text.isascii() and text.isprintable() and text)[0]
    stop = GenerationRequest("stop", greedy()[3].prompt_ids, 16, stop=(piece,))
    stopped, reference = run(vllm, [stop])[0], run(ours, [stop])[0]
    report["stop"] = [
        stopped.finish,
        stopped.stop,
        stopped.text == reference.text,
        stopped.token_ids == reference.token_ids,
    ]
    report["seeds_repeat"] = [g.token_ids for g in run(vllm, sampled(1.0))] == [
        g.token_ids for g in run(vllm, sampled(1.0))
    ]
    vllm.load_weights(second, "v2")
    ours.load_weights(second, "v2")
    after, expected = run(vllm, greedy()), run(ours, greedy())
    report["reloaded_first_logprob_error"] = max(
        abs(a.logprobs[0] - b.logprobs[0]) for a, b in zip(after, expected, strict=True)
    )
    report["versions"] = [vllm.policy_version, ours.policy_version]
    vllm.submit(greedy()[0])
    vllm.release("s0")
    report["pending_after_release"] = vllm.pending()
    vllm.close()
    sys.stdout.write("REPORT " + json.dumps(report) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
