"""What RL alone needs beside a model: base, tasks and corpus, from its lineage, else the newest of the store."""

from collections.abc import Callable
from dataclasses import dataclass, field

from afm_core.config import ConfigError
from afm_core.store import ArtifactKind, ArtifactRef, Lineage, Manifest, Store

SELECT = "select"
_PARTS = (SELECT, "add")
"""Stages whose tasks are no whole set: a selection for RL, a version of a task pool."""


@dataclass(frozen=True)
class RlInputs:
    """The inputs of the stages `select` and `rl`, and where each came from (role -> words)."""

    policy: ArtifactRef
    base: ArtifactRef
    tasks: ArtifactRef
    corpus: ArtifactRef
    origins: dict[str, str] = field(default_factory=dict)


def rl_inputs(store: Store, policy: ArtifactRef, tasks: ArtifactRef | None = None) -> RlInputs:
    """Find what `policy` is trained with; `tasks` replaces the tasks of its lineage.

    The base is the model that the lineage starts with (the policy itself where there is no other): selection asks it
    which tasks it knows by heart. The corpus is the one that the tasks were made from.

    Raises:
        ConfigError: no tasks or no corpus anywhere, or `tasks` is a selection, which has no dev tasks.
    """
    ancestors = list(store.lineage(policy).walk())
    base = _ancestor(ancestors, lambda node: node.stage == "base")
    found, tasks_origin = (tasks, "given") if tasks else _tasks(store, ancestors)
    manifest = store.manifest(found)
    if manifest.stage == SELECT:
        raise ConfigError(
            f"tasks {found.digest[:12]} are a selection of training tasks, without dev tasks to choose a model by: "
            f"give the tasks that it was made from ({manifest.parents['tasks'].digest[:12]})"
        )
    corpus, corpus_origin = _corpus(store, manifest.parents.get("corpus"), ancestors)
    origins = {
        "base": "the model's lineage" if base else "the model itself",
        "tasks": tasks_origin,
        "corpus": corpus_origin,
    }
    return RlInputs(policy, base or policy, found, corpus, origins)


def task_inputs(store: Store, tasks: ArtifactRef | None = None) -> tuple[ArtifactRef, ArtifactRef, dict[str, str]]:
    """(tasks, corpus, where each came from) to demonstrate: `tasks`, else the newest of the store, and their documents.

    Raises:
        ConfigError: there are no tasks or no corpus in the store.
    """
    found, tasks_origin = (tasks, "given") if tasks else _tasks(store, [])
    corpus, corpus_origin = _corpus(store, store.manifest(found).parents.get("corpus"), [])
    return found, corpus, {"tasks": tasks_origin, "corpus": corpus_origin}


def task_sets(store: Store) -> list[Manifest]:
    """Whole task sets, all four splits of them, oldest first: a selection for RL or a task pool alone is none."""
    return [one for one in store.ls(ArtifactKind.TASKS) if one.stage not in _PARTS]


def _tasks(store: Store, ancestors: list[Lineage]) -> tuple[ArtifactRef, str]:
    known = _ancestor(ancestors, lambda node: node.ref.kind is ArtifactKind.TASKS and node.stage not in _PARTS)
    if known is not None:
        return known, "the model's lineage"
    made = task_sets(store)
    if not made:
        raise ConfigError(f"no tasks in {store.uri}: run `afm run --until tasks`")
    return store.ref(made[-1]), "the newest of the store"


def _corpus(store: Store, parent: ArtifactRef | None, ancestors: list[Lineage]) -> tuple[ArtifactRef, str]:
    if parent is not None:
        return parent, "the tasks' documents"
    known = _ancestor(ancestors, lambda node: node.ref.kind is ArtifactKind.CORPUS)
    if known is not None:
        return known, "the model's lineage"
    made = store.ls(ArtifactKind.CORPUS)
    if not made:
        raise ConfigError(f"no corpus in {store.uri} for the tools to search: run `afm run --until corpus`")
    return store.ref(made[-1]), "the newest of the store"


def _ancestor(ancestors: list[Lineage], fits: Callable[[Lineage], bool]) -> ArtifactRef | None:
    return next((node.ref for node in ancestors if not node.missing and fits(node)), None)
