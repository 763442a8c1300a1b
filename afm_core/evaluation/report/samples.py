"""Which trajectories a report shows: few, chosen by rule and not by hand, so that two equal runs show the same ones."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from afm_core.coa import prompt
from afm_core.config import ConfigError, RunConfig, parse_config
from afm_core.data import AgentTask, Origin, Tag, Trajectory, trajectories_from_table
from afm_core.evaluation.report.data import TrajectoryView
from afm_core.evaluation.report.viewer import view_trajectory
from afm_core.store import read_table
from afm_core.tokens import chat_prompt_ids

WROTE = "were written by the policy, which is what RL trains"


class Sampler:
    """Chooses trajectories and makes their views, with the tokens of the tokenizer in `model` (None: no tokens)."""

    def __init__(self, tasks: Mapping[str, AgentTask], config: Mapping[str, Any], model: Path | None) -> None:
        self.notes: list[str] = []
        self._tasks = tasks
        self._config = config
        self._model = model

    def demonstrations(self, directory: Path) -> list[TrajectoryView]:
        """Two demonstrations that correct a mistake, then one plain one of each number of tool calls, at most four."""
        every = _read(directory)
        mistaken = [one for one in every if any(segment.mistake for segment in one.segments)]
        plain = [one for one in every if one not in mistaken]
        chosen = [(one, "Demonstrations that correct a mistake") for one in _spread(mistaken, 2)]
        chosen += [(one, "Demonstrations") for one in _spread(plain, 4)]
        return [self._demonstration(one, group) for one, group in chosen]

    def episodes(self, directory: Path, label: str) -> list[TrajectoryView]:
        """Right and wrong episodes of one model on the test split: of an agent three each, of a base model two."""
        every = _read(directory)
        names = ("few_shot", "zero_shot") if label == "base" else ("agent",)
        name = next((name for name in names if any(one.id.startswith(f"{name}-test-") for one in every)), names[0])
        mine = [one for one in every if one.id.startswith(f"{name}-test-")]
        count = 2 if label == "base" else 3
        right = [one for one in mine if one.reward is not None and one.reward >= 1]
        wrong = [one for one in mine if one.reward is None or one.reward < 1]
        chosen = [(one, f"{label.upper()}, right") for one in _spread(right, count)]
        chosen += [(one, f"{label.upper()}, wrong") for one in _spread(wrong, count, key=_ending)]
        return [self._episode(one, group, f"{label.upper()} model") for one, group in chosen]

    def rollouts(self, directory: Path) -> list[TrajectoryView]:
        """Of the first and the last step of RL: two rollouts that trained with an answer that is right, two wrong."""
        steps = sorted(path for path in directory.glob("*") if path.is_dir())
        views = []
        for step in steps[:1] + steps[1:][-1:]:
            name = f"RL step {int(step.name.rpartition('-')[2])}"
            advantages = _advantages(step / "experience.parquet")
            every = _read(step)
            trained = [one for one in every if one.id in advantages] or every
            for words, fits in (("right", True), ("wrong", False)):
                mine = [one for one in trained if (one.reward is not None and one.reward >= 1) is fits]
                for one in _spread(mine, 2):
                    views.append(self._rollout(one, f"{name}, {words}", advantages.get(one.id)))
        return views

    def _rollout(self, trajectory: Trajectory, group: str, advantage: float | None) -> TrajectoryView:
        trained = "were written by the policy and did not train"
        if advantage is not None:
            trained = f"were trained with an advantage of {advantage:+.2f}"
        return self._episode(trajectory, group, "the policy in training", trained)

    def _demonstration(self, trajectory: Trajectory, group: str) -> TrajectoryView:
        text, count = self._prompt(trajectory)
        sft = self._resolved.sft if self._resolved else None
        return self._view(
            trajectory,
            group=group,
            source=trajectory.source.replace("_", " "),
            prompt=text,
            prompt_tokens=count,
            mask_observations=sft.mask_observations if sft else True,
            train_mistakes=sft.train_mistakes if sft else False,
        )

    def _episode(self, trajectory: Trajectory, group: str, source: str, trained: str = WROTE) -> TrajectoryView:
        first = trajectory.segments[0]
        asked = first if first.origin is Origin.PROMPT else None
        return self._view(
            trajectory,
            group=group,
            source=source,
            trained=trained,
            append_end_of_turn=False,
            prompt=asked.text if asked else "",
            prompt_tokens=trajectory.usage.prompt_tokens,
        )

    def _view(self, trajectory: Trajectory, **fields: Any) -> TrajectoryView:
        task = self._tasks.get(trajectory.task_id)
        return view_trajectory(trajectory, task=task, tokenizer=self._tokenizer, **fields)

    def _prompt(self, trajectory: Trajectory) -> tuple[str, int]:
        if self._resolved is None:
            return "", 0
        agent = self._resolved.agent
        text = prompt(trajectory.question, agent.grammar, agent.prompt, [Tag(tag) for tag in agent.tools])
        return text, len(chat_prompt_ids(self._tokenizer, text)) if self._tokenizer is not None else 0

    @cached_property
    def _resolved(self) -> RunConfig | None:
        try:
            return parse_config(self._config) if self._config else None
        except ConfigError as error:
            self.notes.append(f"the configuration cannot be read: {error}")
            return None

    @cached_property
    def _tokenizer(self) -> Any:
        if self._model is None:
            self.notes.append("token boundaries: this run has no model yet, so no tokenizer")
            return None
        # Not AutoTokenizer: that imports torch, which a report has no use for and the run's parent no memory.
        from transformers import PreTrainedTokenizerFast

        try:
            return PreTrainedTokenizerFast.from_pretrained(self._model)
        except (OSError, ValueError) as error:
            self.notes.append(f"token boundaries: the tokenizer of {self._model} cannot be read ({error})")
            return None


def _read(directory: Path) -> list[Trajectory]:
    every = trajectories_from_table(read_table(directory / "trajectories.parquet"))
    return sorted(every, key=lambda one: one.id)


def _advantages(path: Path) -> dict[str, float]:
    """trajectory id -> mean advantage of its trained tokens, for those that trained in a step."""
    if not path.exists():
        return {}
    found = {}
    for row in read_table(path).select(["id", "mask", "advantages"]).to_pylist():
        kept = [value for value, mask in zip(row["advantages"], row["mask"], strict=True) if mask]
        if kept:
            found[row["id"]] = sum(kept) / len(kept)
    return found


def _calls(trajectory: Trajectory) -> str:
    return str(trajectory.usage.tool_calls)


def _ending(trajectory: Trajectory) -> str:
    return str(trajectory.status)


def _spread(
    trajectories: Sequence[Trajectory], count: int, key: Callable[[Trajectory], str] = _calls
) -> Iterable[Trajectory]:
    """`count` trajectories, a different kind (number of tool calls, ending) each as long as there are kinds left."""
    kinds: dict[str, int] = {}
    ranked = []
    for trajectory in trajectories:
        kind = key(trajectory)
        kinds[kind] = kinds.get(kind, 0) + 1
        ranked.append((kinds[kind], kind, trajectory.id, trajectory))
    return [entry[3] for entry in sorted(ranked, key=lambda entry: entry[:3])[:count]]
