"""What reinforcement learning adds to a model that was fine-tuned on a few demonstrations, and what more SFT would add.

    AFM_HOME=/big/disk python benchmarks/rl_study.py --seeds 0 1 2

One SFT model (profile rl-study); from it, a seed each: RL, and as control SFT on the same demonstrations with the same
computation (3 forward passes a trained token, 1 a sampled one). All are measured greedily on the same test tasks. The
interval is a bootstrap over seeds and tasks of the paired difference to the SFT model. Every stage is cached: a study
that was stopped goes on. Prints a table and writes JSON.
"""

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afm_core.config import load_config
from afm_core.data import trajectories_from_table
from afm_core.evaluation.rows import rows_from_table
from afm_core.execution import RunSession, new_run_id
from afm_core.store import ArtifactRef, read_table

PROFILE = "rl-study"
RESAMPLES = 10_000
ONLY_THE_TEST = ("evaluation.baseline_limit=1", "evaluation.gate_limit=1")


class Study:
    """The stages of the study under one configuration at a time."""

    def __init__(self, overrides: Sequence[str]) -> None:
        self.overrides = list(overrides)

    def stages(self, requests: Sequence[tuple[str, Mapping[str, ArtifactRef], str]], *more: str) -> list[ArtifactRef]:
        """Run stages (name, inputs, variant) one after the other under the study's and `more` overrides."""
        config = load_config(PROFILE, None, [*ONLY_THE_TEST, *self.overrides, *more])
        refs = []
        with RunSession(config, new_run_id()) as session:
            self.store = session.store
            for name, inputs, variant in requests:
                record = session.execute(name, inputs, variant)
                print(
                    f"{name:<10} {variant:<10} {record.seconds:8.1f} s {'cached' if record.cached else ''}", flush=True
                )
                refs.append(record.artifact)
        return refs

    def path(self, ref: ArtifactRef) -> Path:
        """The artifact's files."""
        return self.store.open(ref).path

    def correct(self, evaluation: ArtifactRef) -> dict[str, tuple[bool, int]]:
        """test task -> (correct, hops), of the agent's protocol."""
        rows = rows_from_table(read_table(self.path(evaluation) / "rows.parquet"))
        return {row.task_id: (row.correct, row.hops) for row in rows if (row.protocol, row.split) == ("agent", "test")}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """The whole study; returns its figures."""
    study = Study(arguments.overrides)
    (corpus,) = study.stages([("corpus", {}, "")])
    (tasks,) = study.stages([("tasks", {"corpus": corpus}, "")])
    shown, base = study.stages([("teach", {"corpus": corpus, "tasks": tasks}, ""), ("base", {}, "")])
    (demonstrations,) = study.stages([("curate", {"demonstrations": shown, "tasks": tasks}, "")])
    (sft,) = study.stages([("sft", {"base": base, "demonstrations": demonstrations}, "")])
    held_out = {"tasks": tasks, "corpus": corpus}
    before, selected = study.stages(
        [("evaluate", {"model": sft, **held_out}, "policy"), ("select", {**held_out, "policy": sft, "base": base}, "")]
    )
    reference = study.correct(before)
    arms: dict[str, list[dict[str, tuple[bool, int]]]] = {"rl": [], "more_sft": []}
    details = []
    for seed in arguments.seeds:
        (rl,) = study.stages([("rl", {**held_out, "policy": sft, "selected": selected}, "")], f"rl.seed={seed}")
        (after,) = study.stages([("evaluate", {"model": rl, **held_out}, "policy:rl")])
        arms["rl"].append(study.correct(after))
        epochs = control_epochs(study, rl, sft)
        (more,) = study.stages(
            [("sft", {"base": base, "demonstrations": demonstrations}, "")], f"sft.epochs={epochs}", f"sft.seed={seed}"
        )
        (after,) = study.stages([("evaluate", {"model": more, **held_out}, "policy")])
        arms["more_sft"].append(study.correct(after))
        details.append({"seed": seed, "control_epochs": epochs, **account(study.path(rl))})
    return {
        "tasks": len(reference),
        "sft": accuracy(reference),
        "arms": {name: arm_figures(reference, results) for name, results in arms.items()},
        "seeds": details,
    }


def account(model: Path) -> dict[str, Any]:
    """What is told of a seed's RL: its end, the registered step, rewards and dev accuracies."""
    rl = json.loads((model / "rl.json").read_text())
    return {
        "end": rl["end"],
        "registered_step": rl["registered_step"],
        "rewards": [round(step["reward"], 3) for step in rl["steps"]],
        "dev": {one["step"]: one["accuracy"] for one in rl["evaluations"]},
    }


def control_epochs(study: Study, rl: ArtifactRef, sft: ArtifactRef) -> float:
    """Epochs of SFT that cost as many forward and backward passes of a token as the RL did."""
    steps = json.loads((study.path(rl) / "rl.json").read_text())["steps"]
    sampled = 0
    for file in sorted((study.path(rl) / "sidecar" / "rollouts").glob("*/trajectories.parquet")):
        for one in trajectories_from_table(read_table(file)):
            sampled += one.usage.prompt_tokens + one.usage.sampled_tokens + one.usage.observation_tokens
    epoch = study.store.manifest(sft).metrics["tokens"]
    return round((3 * sum(step["tokens"] for step in steps) + sampled) / (3 * epoch), 2)


def accuracy(results: Mapping[str, tuple[bool, int]]) -> dict[str, float]:
    """Shares of correct tasks: all, and by hops."""
    hops = sorted({hop for _, hop in results.values()})
    figures = {"all": sum(right for right, _ in results.values()) / len(results)}
    for hop in hops:
        mine = [right for right, other in results.values() if other == hop]
        figures[f"{hop} hops"] = sum(mine) / len(mine)
    return {name: round(value, 4) for name, value in figures.items()}


def arm_figures(
    reference: Mapping[str, tuple[bool, int]], seeds: Sequence[Mapping[str, tuple[bool, int]]]
) -> dict[str, Any]:
    """Accuracy a seed, mean gain over the reference, and its 95% interval (bootstrap over seeds and tasks)."""
    names = sorted(reference)
    gains = [[float(one[name][0]) - float(reference[name][0]) for name in names] for one in seeds]
    generator = random.Random(0)
    means = []
    for _ in range(RESAMPLES):
        chosen = [generator.choice(gains) for _ in gains]
        places = generator.choices(range(len(names)), k=len(names))
        means.append(sum(seed[place] for seed in chosen for place in places) / (len(chosen) * len(places)))
    means.sort()
    mean = sum(sum(seed) for seed in gains) / (len(gains) * len(names))
    low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]
    return {
        "accuracy": [accuracy(one) for one in seeds],
        "gain": round(mean, 4),
        "interval": [round(low, 4), round(high, 4)],
    }


def show(figures: Mapping[str, Any]) -> None:
    """The table."""
    print(f"\n{figures['tasks']} test tasks, greedy; SFT on a few demonstrations: {figures['sft']['all']:.1%}")
    print(f"{'arm':<10} {'accuracy by seed':<30} {'gain':>8} {'95% interval':>20}")
    for name, arm in figures["arms"].items():
        seeds = ", ".join(f"{one['all']:.1%}" for one in arm["accuracy"])
        low, high = arm["interval"]
        print(f"{name:<10} {seeds:<30} {arm['gain']:>+8.1%} {low:>+9.1%} to {high:>+7.1%}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--out", type=Path, default=Path("rl_study.json"))
    arguments = parser.parse_args()
    figures = run(arguments)
    arguments.out.write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    show(figures)


if __name__ == "__main__":
    main()
