"""Task pools: growing sets of tasks, as chains of immutable versions in the store.

    pools/NAME/N.json           pointer to version N, made by conditional create: exactly one writer makes it
    pools/NAME/announced/N      version N was announced to whoever wants to know (see `unannounced`)

A version is a tasks artifact, committed as any stage commits: tasks.parquet (all rows of all splits), added.parquet
(what this version added) and pool.json (name, version, digest of the parent, counts). A writer reads the head, merges,
commits, and asks for the next name; one that comes second merges again with the new head. A commit without a pointer
(its writer was killed, or lost) is of no version and harms nobody. Nothing new, nothing published: adding a file
twice gives one version.
"""

import hashlib
import json
import re
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from afm_core.config import ConfigError, SplitShares
from afm_core.data import ADDED_FILE, AgentTask, Split, tasks_from_table, tasks_table
from afm_core.store import (
    ArtifactKind,
    ArtifactMissing,
    ArtifactRef,
    StageResult,
    StageSpec,
    Store,
    read_table,
    stage_key,
    write_table,
)
from afm_core.taskcraft.admission import Admission, Known, admit
from afm_core.taskcraft.rows import BadRow, GoodRow

STAGE = "add"
"""What the manifests of versions are named by: no stage of a run."""
TASKS_FILE = "tasks.parquet"
POOL_FILE = "pool.json"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_FORMAT = "1"


@dataclass(frozen=True)
class PoolVersion:
    """One version of a pool and the artifact that it is."""

    pool: str
    version: int
    ref: ArtifactRef

    def __str__(self) -> str:
        return f"{self.pool}@{self.version}"


@dataclass(frozen=True)
class Published:
    """What an addition did: the pool's head afterwards (None: the pool is still empty), new or not, and the rows."""

    head: PoolVersion | None
    is_new: bool
    admission: Admission


def check_name(pool: str) -> str:
    """The name; raises ConfigError if it cannot name a pool."""
    if not _NAME.fullmatch(pool):
        raise ConfigError(f"a pool cannot be named {pool!r}: use lower-case letters, digits, dots, dashes, underscores")
    return pool


def pool_names(store: Store) -> list[str]:
    """Every pool that has a version."""
    return [name for name in store.backend.names("pools") if pool_versions(store, name)]


def pool_versions(store: Store, pool: str) -> list[PoolVersion]:
    """All versions, oldest first; number n stands at place n - 1. Raises ArtifactMissing if a pointer is damaged."""
    names = store.backend.names(f"pools/{check_name(pool)}")
    numbers = sorted(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdigit())
    return [_version(store, pool, number) for number in numbers]


def pool_head(store: Store, pool: str) -> PoolVersion | None:
    """The newest version, or None."""
    names = store.backend.names(f"pools/{check_name(pool)}")
    numbers = [int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdigit()]
    return _version(store, pool, max(numbers)) if numbers else None


def find_version(store: Store, pool: str, version: int | None = None) -> PoolVersion:
    """A version by number (None: the newest). Raises ConfigError if there is none."""
    known = pool_head(store, pool)
    if known is None:
        others = ", ".join(pool_names(store)) or "none yet"
        raise ConfigError(f"there is no task pool {pool!r} in {store.uri} (pools: {others}): afm tasks add FILE")
    if version is None or version == known.version:
        return known
    if not 1 <= version < known.version:
        raise ConfigError(f"task pool {pool!r} has no version {version}; it has 1 to {known.version}")
    return _version(store, pool, version)


def pool_tasks(store: Store, version: PoolVersion | None, file: str = TASKS_FILE) -> list[AgentTask]:
    """The tasks of a version (or, with ADDED_FILE, its additions), sorted by id; none before the first version."""
    if version is None:
        return []
    return tasks_from_table(read_table(store.open(version.ref).path / file))


def publish_rows(
    store: Store,
    pool: str,
    rows: Sequence[GoodRow | BadRow],
    known_with: Callable[[Sequence[AgentTask]], Known],
    shares: SplitShares,
    scratch: Path,
) -> Published:
    """Add rows to a pool: merge with its head, and publish the next version if anything is new.

    `known_with(tasks of the head)` gives what rows are held against, anew for every head. `scratch` is for temporary
    files.

    Raises:
        ConfigError: an unusable name or store. StoreError: the store does not answer, or the head's artifact is gone.
    """
    check_name(pool)
    while True:
        present = pool_head(store, pool)
        tasks = pool_tasks(store, present)
        admission = admit(rows, known_with(tasks), shares)
        if not admission.added:
            return Published(present, False, admission)
        number = present.version + 1 if present else 1
        ref = _commit(store, pool, number, present, tasks, admission.added, scratch)
        pointer = {"artifact": ref.model_dump(mode="json"), "mark": uuid.uuid4().hex}
        if store.backend.create(_pointer_path(pool, number), json.dumps(pointer, sort_keys=True).encode()):
            return Published(PoolVersion(pool, number, ref), True, admission)


def unannounced(store: Store, pool: str) -> list[PoolVersion]:
    """Versions that nobody was told of yet, oldest first: whoever tells marks them with `mark_announced`."""
    told = set(store.backend.names(f"pools/{check_name(pool)}/announced"))
    return [one for one in pool_versions(store, pool) if str(one.version) not in told]


def mark_announced(store: Store, version: PoolVersion) -> None:
    """Remember that a version was announced. Called after the announcement: at least once, never not at all."""
    store.backend.create(f"pools/{version.pool}/announced/{version.version}", uuid.uuid4().hex.encode())


def _version(store: Store, pool: str, number: int) -> PoolVersion:
    data = store.backend.read(_pointer_path(pool, number))
    try:
        return PoolVersion(pool, number, ArtifactRef.model_validate(json.loads(data or b"")["artifact"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactMissing(f"{store.uri}/{_pointer_path(pool, number)} cannot be read ({error})") from error


def _commit(
    store: Store,
    pool: str,
    number: int,
    parent: PoolVersion | None,
    tasks: Sequence[AgentTask],
    added: Sequence[AgentTask],
    scratch: Path,
) -> ArtifactRef:
    """Commit a version's artifact. Its key is its content, so a killed writer's commit is found again."""
    spec = StageSpec(stage=STAGE, config={}, inputs={"parent": parent.ref} if parent else {}, store_uri=store.uri)
    config = {"pool": pool, "version": number, "added": _digest(added)}
    key = stage_key(STAGE, _FORMAT, config, spec.inputs)
    with store.attempt(key=key, spec=spec, kind=ArtifactKind.TASKS, sections=(), scratch=scratch) as attempt:
        if attempt.committed is not None:
            return attempt.committed
        whole = [*tasks, *added]
        rows = {
            TASKS_FILE: write_table(tasks_table(whole), attempt.output / TASKS_FILE),
            ADDED_FILE: write_table(tasks_table(added), attempt.output / ADDED_FILE),
        }
        counts = {"tasks": len(whole), "added": len(added), **_by_split("tasks", whole), **_by_split("added", added)}
        about = {"pool": pool, "version": number, "parent": parent.ref.digest if parent else None, **counts}
        text = json.dumps(about, indent=2, sort_keys=True)
        (attempt.output / POOL_FILE).write_text(text + "\n", encoding="utf-8")
        return attempt.commit(StageResult(metrics={"pool": pool, "version": number, **counts}, rows=rows))


def _by_split(what: str, tasks: Sequence[AgentTask]) -> dict[str, int]:
    counts = Counter(task.split for task in tasks)
    return {f"{what}/{split}": counts[split] for split in Split}


def _digest(tasks: Sequence[AgentTask]) -> str:
    digest = hashlib.sha256()
    for task in sorted(tasks, key=lambda one: one.id):
        digest.update(task.model_dump_json().encode() + b"\n")
    return digest.hexdigest()


def _pointer_path(pool: str, number: int) -> str:
    return f"pools/{pool}/{number}.json"
