"""Files dropped into `incoming/` of the store's root: each becomes rows of a pool exactly once.

A file is claimed by its content (SHA-256), so of two polls one does the work and the other waits, and the claim of a
poll that was killed is taken over. Every step may be done again with the same result:

    publish the rows (known ones publish nothing) ─► rejected/NAME.rejects.jsonl ─► copy to incoming-done/ ─► delete

A file that holds no task at all goes to rejected/ with its reasons. One that grows between two looks is still being
written: it is left for the next poll, as are names that begin with a dot or end in .part or .tmp.
"""

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afm_core.config import SplitShares
from afm_core.data import AgentTask
from afm_core.store import Store, claimed, hash_file
from afm_core.taskcraft.admission import Admission, Known
from afm_core.taskcraft.pool import PoolVersion, publish_rows
from afm_core.taskcraft.rows import BadRow, NotTasks, read_rows

_LOG = logging.getLogger(__name__)

INCOMING, DONE, REJECTED = "incoming", "incoming-done", "rejected"
SETTLE_SECONDS = 2.0
_UNFINISHED = (".part", ".tmp", ".crdownload", ".filepart")


@dataclass(frozen=True)
class Ingested:
    """What became of one file. `version`: the pool version that its rows made (None: nothing new in it).

    moved_to: where the file lies now. rejects: where the reasons lie (None: no row was rejected).
    """

    file: str
    sha256: str
    version: PoolVersion | None
    admission: Admission
    moved_to: str
    rejects: str | None


def poll_once(
    store: Store,
    pool: str,
    known_with: Callable[[Sequence[AgentTask]], Known],
    shares: SplitShares,
    scratch: Path,
    settle_seconds: float = SETTLE_SECONDS,
) -> list[Ingested]:
    """Take in every finished file below incoming/, in the order of names. See `afm_core.taskcraft.pool.publish_rows`.

    Raises:
        ConfigError: an unusable store or pool. StoreError, OSError: the store does not answer. In any case every file
        is tried, and what is done stays.
    """
    first = _waiting(store)
    if first:
        time.sleep(settle_seconds)
    second = _waiting(store)
    done: list[Ingested] = []
    failures: list[Exception] = []
    for name, size in sorted(second.items()):
        if first.get(name) != size:
            _LOG.info("%s is still being written: left for the next poll", name)
            continue
        try:
            ingested = _ingest(store, pool, known_with, shares, scratch, name)
        except Exception as error:  # noqa: BLE001 - raised below: one file must not keep the others waiting
            _LOG.error("%s cannot be taken in: %s", name, error)
            failures.append(error)
            continue
        done += [ingested] if ingested is not None else []
    if failures:
        raise failures[0]
    return done


def write_rejects(rejected: Iterable[BadRow], path: Path) -> None:
    """A rejects file: one JSON object a bad row, with its number, field, reason and what it was."""
    lines = [json.dumps(row.record(), ensure_ascii=True, default=str) for row in rejected]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _waiting(store: Store) -> dict[str, int]:
    """Name below incoming/ -> size in bytes, of files that are not plainly unfinished."""
    found = store.backend.walk(INCOMING)
    return {
        name: size
        for name, size in found.items()
        if not any(part.startswith(".") for part in name.split("/")) and not name.endswith(_UNFINISHED)
    }


def _ingest(
    store: Store,
    pool: str,
    known_with: Callable[[Sequence[AgentTask]], Known],
    shares: SplitShares,
    scratch: Path,
    name: str,
) -> Ingested | None:
    """Take in one file; None if another poll was faster, or it changed meanwhile."""
    local = scratch / "incoming" / "content"
    try:
        sha256 = _fetch(store, name, local)
        with claimed(store, f"incoming-{sha256}"):
            if _fetch(store, name, local) != sha256:
                return None
            return _take_in(store, pool, known_with, shares, scratch, name, local, sha256)
    except FileNotFoundError:
        return None
    finally:
        shutil.rmtree(scratch / "incoming", ignore_errors=True)


def _take_in(
    store: Store,
    pool: str,
    known_with: Callable[[Sequence[AgentTask]], Known],
    shares: SplitShares,
    scratch: Path,
    name: str,
    local: Path,
    sha256: str,
) -> Ingested:
    try:
        rows = read_rows(local)
    except NotTasks as error:
        rows = [BadRow(0, "", str(error).replace(str(local), name), None)]
    published = publish_rows(store, pool, rows, known_with, shares, scratch)
    admission = published.admission
    label = f"{name.replace('/', '_')}-{sha256[:12]}"
    rejects = f"{REJECTED}/{label}.rejects.jsonl" if admission.rejected else None
    if rejects is not None:
        write_rejects(admission.rejected, local.with_name("rejects.jsonl"))
        store.backend.put(local.with_name("rejects.jsonl"), rejects)
    target = f"{DONE if admission.good else REJECTED}/{label}"
    store.backend.put(local, target)
    _delete_if_unchanged(store, name, local.with_name("last-look"), sha256)
    return Ingested(name, sha256, published.head if published.is_new else None, admission, target, rejects)


def _delete_if_unchanged(store: Store, name: str, local: Path, sha256: str) -> None:
    """A file that was replaced or went on growing meanwhile stays: the next poll takes the new content in."""
    try:
        if _fetch(store, name, local) == sha256:
            store.backend.delete(f"{INCOMING}/{name}")
    except FileNotFoundError:
        return


def _fetch(store: Store, name: str, local: Path) -> str:
    """Copy a waiting file; returns its SHA-256. Raises FileNotFoundError if it is gone."""
    local.parent.mkdir(parents=True, exist_ok=True)
    with local.open("wb") as writer:
        for chunk in store.backend.chunks(f"{INCOMING}/{name}"):
            writer.write(chunk)
    return hash_file(local)[1]


def ingested_figures(ingested: Iterable[Ingested]) -> list[dict[str, Any]]:
    """Plain figures of what was taken in, for logs, tables and `--json`."""
    return [
        {
            "file": one.file,
            "version": one.version.version if one.version else None,
            "added": len(one.admission.added),
            "duplicates": one.admission.duplicates,
            "rejected": len(one.admission.rejected),
            "moved_to": one.moved_to,
            "rejects": one.rejects,
        }
        for one in ingested
    ]
