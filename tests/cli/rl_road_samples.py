"""A small store with the artifacts of a road, and what a made-up run of RL leaves: rl.json and one step's rollouts."""

import json
from pathlib import Path
from typing import Any

from afm_core.data import Origin, Segment, Status, Trajectory, Usage, trajectories_table
from afm_core.store import ArtifactKind, ArtifactRef, StageResult, StageSpec, Store, write_table
from afm_core.training.rl.experience import ExperienceRow, write_experience

STEP = {
    "step": 1, "loss": -0.01, "learning_rate": 1e-5, "gradient_norm": 1.2, "reward": 0.5, "groups": 3,
    "live_groups": 2, "trajectories": 4, "tokens": 120, "model_tokens": 40, "entropy": 0.61, "kl_sampler": 1e-4,
    "clip_share": 0.0, "importance_weight": 1.0, "mean_tool_calls": 1.5, "mean_model_tokens": 20.0, "mean_turns": 2.0,
    "staleness": 0, "sampling_rounds": 1, "probe_difference": 0.0, "status": {"completed": 4},
    "masked": {"no_signal": 2},
}  # fmt: skip
RL = {
    "end": "completed",
    "registered_step": 1,
    "warnings": [],
    "evaluations": [
        {"step": step, "accuracy": accuracy, "n": 4, "scored": 4, "interval": [0.1, 0.9], "mean_tool_calls": 1.0,
         "mean_sampled_tokens": 20.0}
        for step, accuracy in ((0, 0.25), (1, 0.5))
    ],
    "steps": [STEP],
}  # fmt: skip


def commit(store: Store, stage: str, kind: ArtifactKind, fill: Any = None, **inputs: ArtifactRef) -> ArtifactRef:
    """An artifact of a stage with those parents; `fill` writes its files."""
    spec = StageSpec(stage=stage, config={}, inputs=inputs, store_uri=store.uri)
    scratch = store.cache.parent / "scratch"
    with store.attempt(key=f"key-{stage}", spec=spec, kind=kind, sections=(), scratch=scratch) as attempt:
        if attempt.committed is not None:
            return attempt.committed
        (attempt.output / "name.txt").write_text(stage)
        if fill is not None:
            fill(attempt.output)
        return attempt.commit(StageResult())


def road(store: Store) -> dict[str, ArtifactRef]:
    """corpus, tasks, base and sft artifacts by stage, linked as a run links them."""
    made: dict[str, ArtifactRef] = {}
    made["corpus"] = commit(store, "corpus", ArtifactKind.CORPUS)
    made["tasks"] = commit(store, "tasks", ArtifactKind.TASKS, corpus=made["corpus"])
    made["base"] = commit(store, "base", ArtifactKind.MODEL)
    shown = commit(store, "curate", ArtifactKind.TRAJECTORIES, tasks=made["tasks"])
    made["sft"] = commit(store, "sft", ArtifactKind.MODEL, base=made["base"], demonstrations=shown)
    return made


def rollout(name: str, reward: float | None = 1.0) -> Trajectory:
    """An episode of one turn by two policies, as the sampler leaves it."""
    turns = ("<think>a</think>", "<answer>X</answer>")
    segments = [Segment(origin=Origin.PROMPT, text="Question: Who?", token_ids=(1, 2, 3))]
    for version, text in zip(("old" * 20, "new" * 20), turns, strict=True):
        segments.append(
            Segment(origin=Origin.SAMPLED, text=text, token_ids=(4, 5), logprobs=(-0.5, -1.5), policy_version=version)
        )
    return Trajectory(
        id=name, task_id="task", question="Who?", answer="X", grammar="web", source="new" * 20, reward=reward,
        segments=tuple(segments), status=Status.COMPLETED, usage=Usage(turns=2, sampled_tokens=4, prompt_tokens=3),
    )  # fmt: skip


def write_step(directory: Path) -> Path:
    """A step's directory: rollout aaaa trained with advantage 1.5, rollout bbbb was left out."""
    directory.mkdir(parents=True)
    write_table(trajectories_table([rollout("aaaa"), rollout("bbbb", 0.0)]), directory / "trajectories.parquet")
    mask = (0, 0, 0, 1, 1, 1, 1)
    write_experience(
        [ExperienceRow("aaaa", 7, (1, 2, 3, 4, 5, 4, 5), mask, (0.0,) * 7, tuple(1.5 * kept for kept in mask), 1)],
        directory,
    )
    (directory / "step.json").write_text(json.dumps(STEP))
    return directory


def write_rl(directory: Path) -> None:
    """What the stage `rl` leaves beside the weights."""
    (directory / "rl.json").write_text(json.dumps(RL))
    write_step(directory / "sidecar" / "rollouts" / "step-000001")
