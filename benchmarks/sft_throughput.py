"""Training speed and memory of the SFT loop on weights of SmolLM2-135M's size, on this machine's processors.

Compares how micro-batches are made: `packed` (ours: rows one after the other, attention isolated by slicing) and
`padded` (length buckets, every row padded to the longest of its bucket). Counts real tokens, never padding. Prints a
table; `--json FILE` also writes the figures.

    python benchmarks/sft_throughput.py --steps 3 --threads 2 --micro-batch-tokens 512 1024
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STRATEGIES = ("packed", "padded")


def main() -> None:
    """Every configuration in a process of its own, so that peaks of memory do not mix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--micro-batch-tokens", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        strategy, capacity = options.one
        sys.stdout.write(json.dumps(measure(strategy, int(capacity), options.steps, options.threads)) + "\n")
        return
    results = []
    sys.stdout.write(f"{'micro-batches':14} {'tokens':>7} {'tokens/s':>9} {'peak GiB':>9}\n")
    for capacity in options.micro_batch_tokens:
        for strategy in options.strategies:
            command = [sys.executable, __file__, "--one", strategy, str(capacity)]
            command += ["--steps", str(options.steps), "--threads", str(options.threads)]
            environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "DS_ACCELERATOR": "cpu"}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            result = json.loads(done.stdout.splitlines()[-1])
            results.append(result)
            speed, peak = result["tokens_per_second"], result["peak_pss_bytes"] / 2**30
            sys.stdout.write(f"{strategy:14} {capacity:7} {speed:9.0f} {peak:9.2f}\n")
            sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def measure(strategy: str, capacity: int, steps: int, threads: int) -> dict[str, Any]:
    """The best step's speed (the machine may be busy) and the peak proportional set size."""
    from afm_core.config.environment import lean_imports

    with lean_imports():
        import deepspeed  # noqa: F401
        import torch
        import torch.distributed as dist

        from afm_core.config import SftConfig
        from afm_core.training.deepspeed_engine import DeepSpeedEngine, load_for_training
        from afm_core.training.loss import SupervisedLoss, collate

    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
        _save_random_model(Path(folder) / "model")
        config = SftConfig(micro_batch_tokens=capacity, max_tokens=512, threads=threads)
        peak = Peak()
        engine = DeepSpeedEngine(SupervisedLoss(load_for_training(Path(folder) / "model", config)), config)
        seconds, tokens = [], 0
        for _ in range(steps + 1):
            rows = _rows(8)
            tokens = sum(len(row.ids) for row in rows)
            supervised = sum(row.supervised for row in rows)
            began = time.monotonic()
            for batch in _batches(rows, strategy, capacity):
                engine.accumulate(collate(batch), 1.0 / supervised)
            engine.step(1e-4)
            seconds.append(time.monotonic() - began)
        return {
            "strategy": strategy,
            "micro_batch_tokens": capacity,
            "threads": threads,
            "tokens_per_second": tokens / min(seconds[1:]),
            "median_tokens_per_second": tokens / sorted(seconds[1:])[len(seconds[1:]) // 2],
            "peak_pss_bytes": peak.stop(),
        }


class Peak:
    """Samples this process's proportional set size."""

    def __init__(self, interval: float = 0.1) -> None:
        self._done = threading.Event()
        self._peak = 0
        self._thread = threading.Thread(target=self._watch, args=(interval,), daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """The peak so far, in bytes."""
        self._done.set()
        self._thread.join()
        return self._peak

    def _watch(self, interval: float) -> None:
        while not self._done.wait(interval):
            for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    self._peak = max(self._peak, int(line.split()[1]) * 1024)


def _rows(count: int) -> list[Any]:
    """Rows like the laptop profile's demonstrations: 230 tokens on average, 40% of them learned; always the same."""
    from afm_core.training.rows import Row

    generator = random.Random(0)
    rows = []
    for number in range(count):
        length = min(512, max(90, int(generator.gauss(230, 60))))
        mask = tuple(int(place > 0.6 * length) for place in range(length))
        rows.append(Row(str(number), tuple(generator.randrange(49_152) for _ in range(length)), mask))
    return rows


def _batches(rows: Sequence[Any], strategy: str, capacity: int) -> list[list[Any]]:
    from afm_core.tokens import length_buckets, pack
    from afm_core.training.rows import Row

    lengths = [len(row.ids) for row in rows]
    if strategy == "packed":
        return [[rows[index] for index in group] for group in pack(lengths, capacity)]
    batches = []
    for group in length_buckets(lengths, capacity):
        longest = max(lengths[index] for index in group)
        padding = [(0,) * (longest - lengths[index]) for index in group]
        members = [rows[index] for index in group]
        batches.append([Row(r.id, r.ids + pad, r.mask + pad) for r, pad in zip(members, padding, strict=True)])
    return batches


def _save_random_model(directory: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(directory)


if __name__ == "__main__":
    main()
