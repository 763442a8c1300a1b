"""Tokens a second of our engine and of `model.generate` on the same ragged multi-turn episodes, in one run.

The model has SmolLM2-135M's shape and random weights. An episode is a prompt of 40-80 ids, then turns of 10-50 sampled
tokens (the length of each is fixed in advance, which stands for its stop string) with observations of 20-60 ids between
them. `generate` gets what a user of it would write: all episodes' turns as one left-padded batch, rows that reached
their end finished by a stopping criterion, everything prefilled again at the next turn. Only sampled tokens count.
Seconds are wall-clock; processor seconds are shown too, because they hardly depend on what else the machine does.

    python benchmarks/generation.py --episodes 24 --turns 3 --json benchmarks/generation.json
"""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from afm_core.config import EngineConfig
from afm_core.engines import GenerationRequest
from afm_core.engines.transformers_engine import TransformersEngine

_STOP = ("</web_search>", "</answer>", "<observation")


def make_model(directory: Path) -> None:
    """A random Llama of SmolLM2-135M's shape, and a tokenizer whose ids spell themselves."""
    vocabulary = {f"<{i}>" if i else "<|end|>": i for i in range(49_152)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<|end|>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>").save_pretrained(directory)
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "eos_token_id": None,
        "bos_token_id": None,
    }
    LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained(directory)


class Timer:
    """Wall-clock and processor seconds since it was made."""

    def __init__(self) -> None:
        self.seconds, self.processor = time.perf_counter(), time.process_time()

    def stop(self) -> "Timer":
        """Turn the starts into durations."""
        self.seconds = time.perf_counter() - self.seconds
        self.processor = time.process_time() - self.processor
        return self


def make_plans(episodes: int, turns: int, seed: int = 0) -> list[tuple[list[int], list[int], list[list[int]]]]:
    """For each episode: prompt ids, length of every turn, observation after every turn."""
    draw = random.Random(seed)

    def ids(low: int, high: int) -> list[int]:
        return [draw.randrange(1, 49_152) for _ in range(draw.randint(low, high))]

    return [
        (ids(40, 80), [draw.randint(10, 50) for _ in range(turns)], [ids(20, 60) for _ in range(turns)])
        for _ in range(episodes)
    ]


def run_engine(directory: Path, plans: list[Any], threads: int) -> tuple[Timer, int, list[list[int]]]:
    """Sampled tokens and each episode's ids, by our engine."""
    config = EngineConfig(threads=threads, slots=len(plans), max_length=1024)
    engine = TransformersEngine(config, directory, "benchmark")
    sequences = [list(prompt) for prompt, _, _ in plans]
    turn_of = [0] * len(plans)

    def submit(index: int) -> None:
        length = plans[index][1][turn_of[index]]
        request = GenerationRequest(str(index), tuple(sequences[index]), length, _STOP, session=str(index))
        engine.submit(request)

    timer, sampled = Timer(), 0
    for index in range(len(plans)):
        submit(index)
    while engine.pending():
        for generation in engine.step():
            index = int(generation.request_id)
            sampled += len(generation.token_ids)
            sequences[index] += [*generation.token_ids, *plans[index][2][turn_of[index]]]
            turn_of[index] += 1
            if turn_of[index] < len(plans[index][1]):
                submit(index)
    return timer.stop(), sampled, sequences


def run_generate(directory: Path, plans: list[Any], threads: int) -> tuple[Timer, int, list[list[int]]]:
    """The same with the library's `generate`."""
    torch.set_num_threads(threads)
    model = LlamaForCausalLM.from_pretrained(directory).eval()
    sequences = [list(prompt) for prompt, _, _ in plans]
    timer, sampled = Timer(), 0
    for turn in range(len(plans[0][1])):
        width = max(map(len, sequences))
        lengths = torch.tensor([lengths[turn] for _, lengths, _ in plans])
        ids = torch.tensor([[0] * (width - len(sequence)) + sequence for sequence in sequences])
        mask = torch.tensor([[0] * (width - len(sequence)) + [1] * len(sequence) for sequence in sequences])

        def ended(rows: torch.Tensor, scores: Any, width: int = width, lengths: Any = lengths, **_: Any) -> Any:
            return rows.shape[1] - width >= lengths

        with torch.inference_mode():
            rows = model.generate(
                ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=int(lengths.max()),
                stopping_criteria=[ended],
                pad_token_id=0,
            )
        for index, (_, planned, observations) in enumerate(plans):
            sequences[index] += [*rows[index, width : width + planned[turn]].tolist(), *observations[turn]]
            sampled += planned[turn]
    return timer.stop(), sampled, sequences


def main() -> None:
    """Run both and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=24)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    plans = make_plans(options.episodes, options.turns)
    results: dict[str, Any] = {"episodes": options.episodes, "turns": options.turns, "threads": options.threads}
    with tempfile.TemporaryDirectory() as name:
        make_model(Path(name))
        found = {}
        for label, runner in (("engine", run_engine), ("generate", run_generate)):
            timer, sampled, found[label] = runner(Path(name), plans, options.threads)
            results[label] = {
                "seconds": round(timer.seconds, 2),
                "processor_seconds": round(timer.processor, 2),
                "tokens": sampled,
                "per_second": round(sampled / timer.seconds, 1),
                "per_processor_second": round(sampled / timer.processor, 1),
            }
            row = "  ".join(f"{key} {value}" for key, value in results[label].items())
            sys.stdout.write(f"{label:10} {row}\n")
    for key in ("per_second", "per_processor_second"):
        results[f"speedup_{key}"] = round(results["engine"][key] / results["generate"][key], 2)
    results["equal_episodes"] = sum(a == b for a, b in zip(found["engine"], found["generate"], strict=True))
    sys.stdout.write(
        f"speed-up {results['speedup_per_second']}, equal episodes {results['equal_episodes']}/{options.episodes}\n"
    )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
