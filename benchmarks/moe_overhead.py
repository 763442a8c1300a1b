"""What diagnosing experts costs beside a plain forward pass of the same tokens through the same model.

    python benchmarks/moe_overhead.py --tokens 1000000

A random Qwen3-MoE (4 layers of 192, 16 experts, 2 a token). Plain and recorded passes alternate
batch by batch, in an order that changes, so that whatever else the machine does falls on both. Asserts that recording
counted every token, and that hidden states are the same bits. Prints a table and writes JSON.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from small_moe import small_moe

from afm_core.moe.capture import captured, moe_layers
from afm_core.moe.recording import Recorder

VOCABULARY = 8192


def measure(tokens: int, experts: int, threads: int) -> dict[str, Any]:
    """Seconds of both kinds of passes over the same batches."""
    torch.set_num_threads(threads)
    model = small_moe(VOCABULARY, experts).eval()
    body, layers = model.get_decoder(), moe_layers(model)
    recorder = Recorder("random", layers, sample_tokens=32_768)
    rows, length = 8, 512
    documents = torch.arange(rows)[:, None].expand(rows, length)
    mask = torch.ones(rows, length, dtype=torch.bool)
    seconds = {"plain": 0.0, "recorded": 0.0}
    batches = -(-tokens // (rows * length))
    generator = torch.Generator().manual_seed(0)

    def plain(ids: torch.Tensor) -> torch.Tensor:
        began = time.perf_counter()
        hidden: torch.Tensor = body(input_ids=ids, use_cache=False).last_hidden_state
        seconds["plain"] += time.perf_counter() - began
        return hidden

    def recorded(ids: torch.Tensor, number: int) -> torch.Tensor:
        began = time.perf_counter()
        with captured(layers, recorder.mask, recorder.sink):
            recorder.begin(ids, documents + number * rows, mask)
            hidden: torch.Tensor = body(input_ids=ids, use_cache=False).last_hidden_state
        seconds["recorded"] += time.perf_counter() - began
        return hidden

    with torch.no_grad():
        for number in range(batches):
            ids = torch.randint(VOCABULARY, (rows, length), generator=generator)
            if number % 2:
                one, other = plain(ids), recorded(ids, number)
            else:
                other, one = recorded(ids, number), plain(ids)
            assert torch.equal(one, other), "recording changed the forward pass"
    routed = batches * rows * length
    assert int(recorder.result().counts.sum()) == routed * len(layers) * 2
    return {
        "tokens": routed,
        "parameters": sum(one.numel() for one in model.parameters()),
        "experts": experts,
        "seconds": seconds,
        "ratio": seconds["recorded"] / seconds["plain"],
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("moe_overhead.json"))
    arguments = parser.parse_args()
    figures = measure(arguments.tokens, arguments.experts, arguments.threads)
    print(f"{figures['tokens']:,} tokens, {figures['parameters']:,} parameters, {figures['experts']} experts")
    for name, value in figures["seconds"].items():
        print(f"{name:<10} {value:8.1f} s  {figures['tokens'] / value:10,.0f} tokens/s")
    print(f"ratio      {figures['ratio']:8.3f}")
    arguments.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
