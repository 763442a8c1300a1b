"""Does training only a domain's own experts pay? Compared: selected, random, most-loaded experts, LoRA, all weights.

    python benchmarks/moe_study.py --work /big/disk/moe-study

1. A small Qwen3-MoE (about 11M parameters) is trained from random weights on three domains in equal parts: facts (the
   world corpus), code (Python sources) and prose (package descriptions), the last two from the installed packages.
2. Its experts are diagnosed for the target domain, code.
3. From it, three seeds an arm, the same number of tokens of new code: the experts selected by contribution, as many
   random ones (drawn anew a seed), as many of the most loaded, LoRA of as many parameters on the attention, and all
   weights. Each arm has the learning rate that did best for it among three on a development set, one seed.
4. Loss on held-out documents of all domains; intervals by bootstrap over seeds and documents, paired with the selected
   arm. A null result is a result.
5. Ablation: the loss with each set of experts shut out (the router chooses among the others), for every domain; and of
   every single expert.

Everything finished is kept in --work: a study that was stopped goes on. Prints tables and writes JSON.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from small_moe import DOMAINS, LENGTH, prepare, small_moe, stream, train

from afm_core.config import DiagnoseConfig, LoraConfig
from afm_core.moe.capture import moe_layers
from afm_core.moe.expert_training import routing_overlap, routing_sets, train_only
from afm_core.moe.figures import diagnosis
from afm_core.moe.selection import (
    Chosen,
    Score,
    best_experts,
    random_experts,
    scores,
    smallest_sets,
    to_selection,
    within_budget,
)
from afm_core.moe.stages import model_shape, record
from afm_core.training.lora import inject

TARGET = "code"
ARMS = ("selected", "random", "loaded", "lora", "full")
RATES = {"experts": (1e-3, 3e-3, 1e-2), "lora": (1e-3, 3e-3, 1e-2), "full": (3e-4, 1e-3, 3e-3)}


def losses(model: Any, rows: Sequence[Sequence[int]]) -> list[float]:
    """Mean loss in nats a token of every document (its first LENGTH * 2 tokens)."""
    found = []
    with torch.no_grad():
        for row in rows:
            ids = torch.tensor([row[: LENGTH * 2]])
            found.append(float(model(ids, labels=ids).loss))
    return found


@contextmanager
def shut_out(model: Any, chosen: Chosen) -> Iterator[None]:
    """While the block runs the router never chooses these experts: their router rows give the least score."""
    handles = []
    for layer, some in zip(moe_layers(model), chosen, strict=True):
        handles.append(layer.router.register_forward_hook(_rerouted(some)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _rerouted(some: Sequence[int]) -> Callable[..., Any]:
    def hook(module: Any, _inputs: Any, output: Any) -> Any:
        logits = output[0].clone()
        logits[:, list(some)] = -torch.inf
        weights, indices = logits.softmax(-1, dtype=torch.float).topk(module.top_k, dim=-1)
        return logits, (weights / weights.sum(-1, keepdim=True)).to(logits.dtype), indices

    return hook


class Study:
    """The study's parts; each reads what --work has of it, or makes it."""

    def __init__(self, work: Path, base_tokens: int, more_tokens: int) -> None:
        self.work = work
        self.more_tokens = more_tokens
        work.mkdir(parents=True, exist_ok=True)
        self.tokenizer, self.texts = prepare(work, base_tokens, more_tokens)
        self.base_tokens = base_tokens

    def kept(self, name: str, make: Callable[[], Any]) -> Any:
        """The JSON of `name`, made if it is not there."""
        path = self.work / f"{name}.json"
        if not path.exists():
            value = make()
            temporary = path.with_suffix(".part")
            temporary.write_text(json.dumps(value))
            temporary.rename(path)
        return json.loads(path.read_text())

    def base(self) -> Any:
        """The model that all arms start from."""
        from transformers import AutoModelForCausalLM

        if not (self.work / "base").is_dir():
            model = small_moe()
            batches = stream([self.texts[one].base for one in DOMAINS], self.base_tokens * len(DOMAINS), seed=0)
            train(model, batches, 2e-3, True, "base")
            model.save_pretrained(self.work / "base.part")
            (self.work / "base.part").rename(self.work / "base")
        return AutoModelForCausalLM.from_pretrained(self.work / "base").eval()

    def diagnose(self) -> tuple[dict[str, Any], dict[str, Chosen]]:
        """Figures of the base model, and the target's sets of experts."""
        model = self.base()
        layers = moe_layers(model)
        config = DiagnoseConfig(tokens=60_000, sequence_tokens=LENGTH, batch_tokens=2048, sample_tokens=16_384)
        found = [
            record(model, _Ids(), layers, one, _joined(self.texts[one].dev + self.texts[one].test), config)
            for one in DOMAINS
        ]
        figures = diagnosis(found, [layer.layer for layer in layers], config)
        counts = np.stack([one.counts.sum(0) for one in found])
        gates = np.stack([one.gates.sum(0) for one in found])
        place = DOMAINS.index(TARGET)
        score, lift = scores(Score.CONTRIBUTION, place, counts, gates)
        selected = within_budget(smallest_sets(score, 0.8, lift, 1.0), score, 16)
        sizes = [len(some) for some in selected]
        loaded = best_experts(scores(Score.TOKEN, place, counts, gates)[0], sizes)
        return figures, {"selected": selected, "loaded": loaded}

    def arm(self, arm: str, seed: int, rate: float, sets: Mapping[str, Chosen], rows: str) -> dict[str, Any]:
        """Fine-tune one arm; losses of every domain's documents of `rows` (dev or test)."""
        model = self.base()
        layers = moe_layers(model)
        probe = [row[:LENGTH] for row in self.texts[TARGET].dev[:8]]
        before = routing_sets(model, probe)
        sizes = [len(some) for some in sets["selected"]]
        shape = model_shape(model, layers)
        if arm == "full":
            trainable = shape["parameters"]
        elif arm == "lora":
            wanted = sum(sizes) * shape["expert_parameters"]
            trainable = _lora(model, wanted)
        else:
            chosen = random_experts(shape["num_experts"], sizes, seed) if arm == "random" else sets[arm]
            places = [layer.layer for layer in layers]
            trainable = train_only(model, to_selection(TARGET, arm, chosen, places, shape))
        torch.manual_seed(seed)
        train(model, stream([self.texts[TARGET].more], self.more_tokens, seed), rate, False, f"{arm} {seed} {rate:g}")
        overlap = routing_overlap(before, routing_sets(model, probe))
        return {
            "trainable": trainable,
            "rate": rate,
            "routing_overlap": overlap,
            "losses": {one: losses(model, getattr(self.texts[one], rows)) for one in DOMAINS},
        }

    def ablation(self, sets: Mapping[str, Chosen]) -> dict[str, Any]:
        """Rise of the loss, by domain, with sets of experts shut out; and of every single expert."""
        model = self.base()
        rows = {one: [row[:LENGTH] for row in self.texts[one].test] for one in DOMAINS}
        plain = {one: float(np.mean(losses(model, rows[one]))) for one in DOMAINS}

        def rise(chosen: Chosen, count: int = 40) -> dict[str, float]:
            with shut_out(model, chosen):
                return {one: float(np.mean(losses(model, rows[one][:count]))) for one in DOMAINS}

        sizes = [len(some) for some in sets["selected"]]
        drawn = [rise(random_experts(16, sizes, seed)) for seed in range(5)]
        few = {one: float(np.mean(losses(model, rows[one][:10]))) for one in DOMAINS}
        single = {
            f"{layer}/{expert}": _minus(
                rise([[expert] if here == layer else [] for here in range(len(sizes))], 10), few
            )
            for layer in range(len(sizes))
            for expert in range(16)
        }
        return {
            "plain": plain,
            **{name: _minus(rise(chosen), plain) for name, chosen in sets.items()},
            "random": {one: float(np.mean([_minus(each, plain)[one] for each in drawn])) for one in DOMAINS},
            "single": single,
        }


class _Ids:
    """A tokenizer of texts that are token ids already."""

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [int(one) for one in text.split()]}


def _joined(rows: Sequence[Sequence[int]]) -> list[str]:
    return [" ".join(map(str, row)) for row in rows]


def _minus(left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
    return {name: left[name] - right[name] for name in left}


def _lora(model: Any, wanted: int) -> int:
    """LoRA on the attention with about `wanted` parameters; returns how many there are."""
    width = 192
    shapes = ((width, 192), (width, 64), (width, 64), (192, width))
    rank = max(1, round(wanted / (4 * sum(a + b for a, b in shapes))))
    inject(model, LoraConfig(rank=rank, alpha=2.0 * rank, targets=("q_proj", "k_proj", "v_proj", "o_proj")))
    return sum(one.numel() for one in model.parameters() if one.requires_grad)


def interval(left: np.ndarray, right: np.ndarray) -> tuple[float, float, float]:
    """Mean of left - right [seeds, documents], and its 95% bootstrap interval over both."""
    generator = np.random.default_rng(0)
    difference = left - right
    seeds, rows = difference.shape
    drawn = [
        difference[generator.integers(seeds, size=seeds)][:, generator.integers(rows, size=rows)].mean()
        for _ in range(4000)
    ]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(difference.mean()), float(low), float(high)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """The whole study."""
    study = Study(arguments.work, arguments.base_tokens, arguments.more_tokens)
    figures, sets = study.kept("diagnosis", lambda: list(study.diagnose()))
    before = study.kept("before", lambda: {one: losses(study.base(), study.texts[one].test) for one in DOMAINS})
    arms: dict[str, list[dict[str, Any]]] = {}
    for arm in ARMS:
        rates = RATES.get(arm, RATES["experts"])
        tried = {
            rate: study.kept(f"dev-{arm}-{rate:g}", lambda a=arm, r=rate: study.arm(a, 100, r, sets, "dev"))
            for rate in rates
        }
        best = min(rates, key=lambda rate: float(np.mean(tried[rate]["losses"][TARGET])))
        arms[arm] = [
            study.kept(f"arm-{arm}-{seed}", lambda a=arm, s=seed, r=best: study.arm(a, s, r, sets, "test"))
            for seed in range(arguments.seeds)
        ]
    ablation = study.kept("ablation", lambda: study.ablation(sets))
    return {"diagnosis": figures, "sets": sets, "before": before, "arms": arms, "ablation": ablation}


def table(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For every arm and domain: change of the loss against the base model, and the difference to the selected arm."""
    rows = []
    for arm in ARMS:
        for domain in DOMAINS:
            mine = np.array([one["losses"][domain] for one in result["arms"][arm]])
            base = np.tile(result["before"][domain], (len(mine), 1))
            chosen = np.array([one["losses"][domain] for one in result["arms"]["selected"]])
            rows.append(
                {
                    "arm": arm,
                    "domain": domain,
                    "trainable": result["arms"][arm][0]["trainable"],
                    "rate": result["arms"][arm][0]["rate"],
                    "change": interval(mine, base),
                    "against_selected": interval(mine, chosen),
                }
            )
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--base-tokens", type=int, default=600_000, help="of each domain, for the base model")
    parser.add_argument("--more-tokens", type=int, default=100_000, help="of the target domain, for every arm")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("moe_study.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    result = run(arguments)
    rows = table(result)
    arguments.out.write_text(json.dumps({**result, "table": rows}, indent=1) + "\n")
    show(result, rows)


def show(result: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """The tables."""
    for name, one in result["diagnosis"]["figures"].items():
        values = "  ".join(
            f"{key} {one[key]['value']:.3f} ({one[key]['low']:.3f} to {one[key]['high']:.3f})"
            for key in ("specialization", "isolation", "load")
        )
        print(f"{name:<8} {values}")
    print(f"\n{'arm':<10}{'trained':>11}{'rate':>8}  {'domain':<8}{'change of loss':>28}{'against selected':>28}")
    for row in rows:
        change, against = (
            f"{row[key][0]:+.4f} ({row[key][1]:+.4f} to {row[key][2]:+.4f})" for key in ("change", "against_selected")
        )
        print(f"{row['arm']:<10}{row['trainable']:>11,}{row['rate']:>8g}  {row['domain']:<8}{change:>28}{against:>28}")
    print("\nrise of the loss with experts shut out")
    for name in ("selected", "loaded", "random"):
        print(f"{name:<10}" + "  ".join(f"{one} {result['ablation'][name][one]:+.4f}" for one in DOMAINS))


if __name__ == "__main__":
    sys.exit(main())
