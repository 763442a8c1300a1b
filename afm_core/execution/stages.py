"""The table of stages: what each needs, makes and depends on. The one place where rooms are wired to names.

A stage's key covers its declared configuration sections, the digests of its inputs, and the digest of its declared
source files: editing an unrelated room never invalidates an artifact, editing a declared one always does.
"""

import hashlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from afm_core.config import (
    AgentConfig,
    ConfigError,
    CorpusConfig,
    CurationConfig,
    DiagnoseConfig,
    EngineConfig,
    EvaluationConfig,
    ModelConfig,
    RegistryConfig,
    RlConfig,
    RolloutConfig,
    RunConfig,
    Section,
    SelectionConfig,
    SftConfig,
    TasksConfig,
    TeacherConfig,
    TeamConfig,
    key_fields,
)
from afm_core.store import ArtifactKind, StageContext, StageResult, StageSpec, stage_key

ROOT = Path(__file__).parents[2]
_LANGUAGE = ("afm_core/data", "afm_core/coa")
_TOKENS = (*_LANGUAGE, "afm_core/tokens")
_ENGINES = tuple(sorted(str(path.relative_to(ROOT)) for path in (ROOT / "afm_core/engines").glob("*.py")))
"""Without the folder of chat endpoints: no episode of the policy asks them."""
_SOLUTION_TEACHER = tuple(sorted(str(path.relative_to(ROOT)) for path in (ROOT / "afm_core/teacher").glob("*.py")))
"""Without the folder of the language-model team."""
_TEAM = (
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "afm_core/teacher/team").glob("*.py")),
    *_SOLUTION_TEACHER,
    "afm_core/engines/backbone",
)
"""No engine of a policy: what was paid for at an endpoint never hangs on how our own models are run."""
_EPISODES = (*_TOKENS, "afm_core/tools", *_ENGINES, "afm_core/rollout", "afm_core/rewards")
_SCORING = tuple(f"afm_core/evaluation/{name}.py" for name in ("rows", "metrics", "sampling"))
_TRAINING = tuple(sorted(str(path.relative_to(ROOT)) for path in (ROOT / "afm_core/training").glob("*.py")))
"""Without the folder of RL: what is edited there never invalidates an SFT model."""
_EXPERTS = tuple(f"afm_core/moe/{name}.py" for name in ("capture", "expert_training", "metrics", "selection"))


@dataclass(frozen=True)
class Stage:
    """One stage. `function` is "module:name"; `sources` are files or folders below the project's root."""

    name: str
    kind: ArtifactKind
    function: str
    sections: tuple[type[Section], ...]
    sources: tuple[str, ...]
    needs_ray: bool = False
    ray_if: Callable[[RunConfig], bool] = lambda config: False
    """Whether a configuration makes it need Ray that otherwise does not."""

    def uses_ray(self, config: RunConfig) -> bool:
        """Whether its process joins a Ray in a run of this configuration."""
        return self.needs_ray or self.ray_if(config)

    def load(self) -> Callable[[StageContext], StageResult]:
        """Import the stage's function (and whatever heavy library it needs)."""
        module, _, name = self.function.partition(":")
        loaded: Callable[[StageContext], StageResult] = getattr(importlib.import_module(module), name)
        return loaded

    def config_of(self, config: RunConfig) -> dict[str, Any]:
        """The key fields of the declared sections, by section name."""
        return {name: key_fields(section) for name, section in _sections(config) if isinstance(section, self.sections)}


STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage(
            "corpus",
            ArtifactKind.CORPUS,
            "afm_core.taskcraft.stages:build_corpus",
            (CorpusConfig,),
            ("afm_core/taskcraft", "afm_core/tools", "afm_core/data"),
        ),
        Stage(
            "tasks",
            ArtifactKind.TASKS,
            "afm_core.taskcraft.stages:generate_tasks",
            (TasksConfig, AgentConfig),
            ("afm_core/taskcraft", "afm_core/tools", "afm_core/data"),
        ),
        Stage(
            "teach",
            ArtifactKind.TRAJECTORIES,
            "afm_core.teacher.stages:teach",
            (TeacherConfig, AgentConfig),
            (*_SOLUTION_TEACHER, *_LANGUAGE, "afm_core/tools", "afm_core/rewards"),
        ),
        Stage(
            "rollout",
            ArtifactKind.TRAJECTORIES,
            "afm_core.teacher.team.stage:rollout",
            (TeamConfig, AgentConfig),
            (*_TEAM, *_LANGUAGE, "afm_core/tools", "afm_core/rewards"),
            ray_if=lambda config: bool(config.team.servers),
        ),
        Stage(
            "sample",
            ArtifactKind.TRAJECTORIES,
            "afm_core.teacher.policy.stage:sample",
            (TeamConfig, AgentConfig, EngineConfig),
            ("afm_core/teacher/policy", *_TEAM, *_EPISODES),
        ),
        Stage(
            "curate",
            ArtifactKind.TRAJECTORIES,
            "afm_core.curation.stages:curate",
            (CurationConfig, AgentConfig),
            ("afm_core/curation", *_SOLUTION_TEACHER, "afm_core/tools", *_LANGUAGE, "afm_core/rewards"),
            needs_ray=True,
        ),
        Stage(
            "base",
            ArtifactKind.MODEL,
            "afm_core.training.stages:base_model",
            (ModelConfig,),
            tuple(f"afm_core/training/{name}.py" for name in ("models", "tiny", "export")),
        ),
        Stage(
            "sft",
            ArtifactKind.MODEL,
            "afm_core.training.stages:sft",
            (SftConfig, AgentConfig),
            (*_TRAINING, *_EXPERTS, *_TOKENS),
            needs_ray=True,
        ),
        Stage(
            "select",
            ArtifactKind.TASKS,
            "afm_core.training.rl.selection:select",
            (SelectionConfig, AgentConfig, EngineConfig),
            (
                *(f"afm_core/training/rl/{name}.py" for name in ("selection", "eligibility")),
                *(f"afm_core/evaluation/{name}.py" for name in ("protocols", "rows", "sampling", "shards")),
                *_EPISODES,
            ),
        ),
        Stage(
            "rl",
            ArtifactKind.MODEL,
            "afm_core.training.rl.stage:rl",
            (RlConfig, RolloutConfig, SelectionConfig, AgentConfig, EngineConfig),
            (
                *_TRAINING,
                *_EXPERTS,
                "afm_core/training/rl",
                *(f"afm_core/evaluation/{name}.py" for name in ("protocols", "rows", "shards")),
                *_SCORING,
                *_EPISODES,
            ),
            needs_ray=True,
        ),
        Stage(
            "evaluate",
            ArtifactKind.EVALUATION,
            "afm_core.evaluation.stages:evaluate",
            (AgentConfig, EngineConfig, EvaluationConfig, TeacherConfig),
            (
                *(f"afm_core/evaluation/{name}.py" for name in ("stages", "runner", "baselines", "protocols")),
                "afm_core/evaluation/shards.py",
                *_SCORING,
                "afm_core/taskcraft/select.py",
                *_SOLUTION_TEACHER,
                *_EPISODES,
            ),
        ),
        Stage(
            "register",
            ArtifactKind.REGISTRATION,
            "afm_core.evaluation.stages:register",
            (RegistryConfig,),
            (
                *(f"afm_core/evaluation/{name}.py" for name in ("stages", "gate", "gate_retrained", "promotion")),
                *_SCORING,
            ),
        ),
        Stage(
            "diagnose",
            ArtifactKind.DIAGNOSIS,
            "afm_core.moe.stages:diagnose",
            (DiagnoseConfig,),
            ("afm_core/moe", "afm_core/data"),
        ),
        Stage(
            "pool",
            ArtifactKind.TASKS,
            "afm_core.taskcraft.pool_stage:join_pool",
            (),
            ("afm_core/taskcraft", "afm_core/tools", "afm_core/data"),
        ),
    )
}


def stage_named(name: str) -> Stage:
    """The stage of that name; raises ConfigError listing the known ones."""
    if name not in STAGES:
        raise ConfigError(f"no stage {name!r}; stages are {', '.join(STAGES)}")
    return STAGES[name]


def key_of(spec: StageSpec) -> str:
    """The stage key of a spec (DESIGN: stage, source digest, resolved sections, input digests)."""
    stage = stage_named(spec.stage)
    return stage_key(
        stage=stage.name,
        source_digest=source_digest(stage.sources),
        config=stage.config_of(RunConfig.model_validate(spec.config)),
        inputs=spec.inputs,
        variant=spec.variant,
    )


@cache
def source_digest(sources: tuple[str, ...]) -> str:
    """SHA-256 over the Python files below the declared sources: paths and contents, in order."""
    digest = hashlib.sha256()
    for path in sorted({file for source in sources for file in _python_files(ROOT / source)}):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _python_files(path: Path) -> list[Path]:
    files = [path] if path.is_file() else list(path.rglob("*.py"))
    assert files, f"declared source {path} has no Python files"
    return files


def _sections(config: RunConfig) -> list[tuple[str, Section]]:
    return [(name, value) for name in RunConfig.model_fields if isinstance(value := getattr(config, name), Section)]
