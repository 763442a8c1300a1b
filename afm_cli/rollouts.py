"""Where trajectories lie (files, step directories of RL, artifacts), and what their tokens say."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afm_core.data import Trajectory
    from afm_core.store import Store

_TABLE = "trajectories.parquet"
_EVERY = "rollouts.parquet"
"""Beside the chosen demonstrations of a task: all of them."""
_EXPERIENCE = "experience.parquet"


def tables_in(place: str, store: Callable[[], "Store"]) -> list[Path]:
    """The trajectory files that `place` means: a file, a directory (one of a step, or any above it), or an artifact.

    Raises ConfigError if there are none.
    """
    from afm_core.config import ConfigError

    path = Path(place).expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        if not re.fullmatch("([a-z]+:)?[0-9a-fA-F]+", place):
            raise ConfigError(f"no file, directory or artifact {place!r}")
        opened = store()
        path = opened.open(opened.find(place)).path
    found = sorted(path.rglob(_TABLE))
    if not found:
        raise ConfigError(f"{place} holds no trajectories ({_TABLE})")
    return found


def tables_of_store(store: "Store") -> Iterator[list[Path]]:
    """All trajectory files of a store: demonstrations first (chosen ones, then every rollout), evaluations, RL."""
    from afm_core.store import ArtifactKind

    for kind in (ArtifactKind.TRAJECTORIES, ArtifactKind.EVALUATION, ArtifactKind.MODEL):
        paths = [store.open(store.ref(manifest)).path for manifest in store.ls(kind)]
        yield [file for name in (_TABLE, _EVERY) for path in paths for file in sorted(path.rglob(name))]


def matching(identity: str, file: Path) -> "list[Trajectory]":
    """Trajectories of a file whose id (or task's id) starts with `identity`; the exact one alone if it is there."""
    from afm_core.coa.formats import read_trajectories

    if file.suffix == ".parquet" and not _mentions(identity, file):
        return []
    every = read_trajectories(file)
    exact = [one for one in every if one.id == identity]
    return exact or [one for one in every if one.id.startswith(identity) or one.task_id.startswith(identity)]


def listed(file: Path) -> list[dict[str, Any]]:
    """What a list of trajectories shows of each of a file: id, task, status, reward, question, file."""
    from afm_core.coa.formats import read_trajectories

    return [
        {
            "id": one.id,
            "task_id": one.task_id,
            "status": one.status.value,
            "reward": one.reward,
            "question": one.question,
            "file": str(file),
        }
        for one in read_trajectories(file)
    ]


def token_figures(trajectory: "Trajectory", file: Path) -> dict[str, Any]:
    """Sampled tokens, the sampler's log-probabilities (nats), policy versions, and what training made of it.

    `experience` is None where no experience.parquet lies beside `file`; a trajectory that is not in it did not train.
    """
    from afm_core.data import Origin

    sampled = [one for one in trajectory.segments if one.origin is Origin.SAMPLED]
    versions: dict[str, int] = {}
    for segment in sampled:
        name = segment.policy_version or "unknown"
        versions[name] = versions.get(name, 0) + len(segment.token_ids or ())
    return {
        "sampled": sum(versions.values()),
        "total": sum(len(one.token_ids or ()) for one in trajectory.segments),
        "logprobs": _summary([value for segment in sampled for value in segment.logprobs or ()]),
        "policy_versions": versions,
        "experience": _experience(trajectory.id, file.parent / _EXPERIENCE),
    }


def _mentions(identity: str, file: Path) -> bool:
    """Whether a table names such a trajectory; only two of its columns are read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from afm_core.config import ConfigError

    try:
        table = pq.read_table(file, columns=["id", "task_id"])
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{file} is no table of trajectories: {error}") from error
    names = (name for column in table.columns for name in column.to_pylist())
    return any(name is not None and name.startswith(identity) for name in names)


def _experience(identity: str, path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    from afm_core.training.rl.experience import read_experience

    row = next((one for one in read_experience(path.parent) if one.id == identity), None)
    if row is None:
        return {"trained": False}
    kept = [value for value, mask in zip(row.advantages, row.mask, strict=True) if mask]
    return {
        "trained": True,
        "trained_tokens": row.supervised,
        "group": row.group,
        "staleness": row.staleness,
        "advantage": _summary(kept),
    }


def _summary(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"mean": sum(values) / len(values), "min": min(values), "max": max(values)}
