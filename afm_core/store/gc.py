"""Garbage collection: what nobody can need any more. A dry run by default.

Deleted: work of attempts that ended without winning (failed, killed, late losers), the data of quarantined
generations, temporary files of killed writers. Kept unless `unfinished`: sealed work of keys that have no
artifact yet, because a later run resumes from it. With `roots`, artifacts that no root descends from are
deleted too, pointer first (a caller names what its running runs have made so far among the roots). Never
touched: what a live lease holds: its key, its inputs and their ancestors. A holder elsewhere is watched until
it moves or counts as dead. Quarantine marks stay, so that a generation is never used twice.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from afm_core.store.browse import lineage
from afm_core.store.lease import Holder, gone
from afm_core.store.manifests import MANIFEST_PATH, data_path, epoch_path, manifest_path, pointer_path
from afm_core.store.refs import ArtifactRef, Manifest

if TYPE_CHECKING:
    from afm_core.store.store import Store

STALE_SECONDS = 3600.0


@dataclass(frozen=True)
class Garbage:
    """One thing to delete: its path in the store, its size in bytes, and why nobody needs it."""

    path: str
    bytes: int
    reason: str


@dataclass(frozen=True)
class Collection:
    """What was (or, in a dry run, would be) deleted, and the live attempts that were left alone."""

    garbage: tuple[Garbage, ...]
    live: tuple[str, ...]
    dry_run: bool

    @property
    def bytes(self) -> int:
        """Bytes freed, or to be freed."""
        return sum(one.bytes for one in self.garbage)


def collect(store: "Store", roots: Iterable[ArtifactRef] | None, *, unfinished: bool, dry_run: bool) -> Collection:
    """Find the garbage and, unless `dry_run`, delete it. Raises ConfigError if the store refuses."""
    epochs = {key: _epochs(store, key) for key in store.backend.names("work")}  # first: later ones are not ours
    live = _live(store, epochs)
    artifacts = store.ls()
    surplus = _unreachable(store, artifacts, roots, live) if roots is not None else []
    kept = {(one.key, one.epoch) for one in artifacts}
    gone_epochs = {(one.key, one.epoch) for one in surplus}
    garbage = [piece for one in surplus for piece in _whole(store, one)]
    for key, numbers in epochs.items():
        if key not in live:
            numbers = [number for number in numbers if (key, number) not in gone_epochs]
            garbage += _leftovers(store, key, numbers, kept, unfinished)
    garbage += _temporary(store)
    if not dry_run:
        for one in garbage:
            store.backend.delete(one.path)
    return Collection(tuple(garbage), tuple(str(holder) for holder in live.values()), dry_run)


def _epochs(store: "Store", key: str) -> list[int]:
    return [int(name) for name in store.backend.names(f"work/{key}") if name.isdigit()]


def _live(store: "Store", keys: Iterable[str]) -> dict[str, Holder]:
    """Key -> live holder. Only a key's newest epoch can be alive, except for a zombie on this host."""
    leases = store.leases()
    live: dict[str, Holder] = {}
    watched: dict[str, tuple[Holder, bytes | None]] = {}
    for key in keys:
        newest = leases.newest(key)
        for epoch in leases.epochs(key)[:-1]:
            older = leases.holder(key, epoch)
            if gone(older.process) is False and not leases.dead(older):
                live[key] = older
        if newest is None or leases.dead(newest):
            continue
        if gone(newest.process) is None:
            watched[key] = (newest, leases.counter(newest))
        else:
            live[key] = newest
    while watched:
        store.timing.sleep(store.timing.poll)
        for key, (holder, counter) in list(watched.items()):
            if leases.dead(holder):
                del watched[key]
            elif leases.counter(holder) != counter:
                live[key] = holder
                del watched[key]
    return live


def _needed(store: "Store", roots: Iterable[ArtifactRef], live: dict[str, Holder]) -> set[str]:
    """URIs of the roots, of what live attempts read, and of all their ancestors."""
    paths = {found.group() for one in live.values() for uri in one.inputs if (found := MANIFEST_PATH.search(uri))}
    inputs = [store.ref(one) for one in store.ls() if manifest_path(one.key, one.epoch) in paths]
    return {node.ref.uri for root in (*roots, *inputs) for node in lineage(store, root).walk()}


def _unreachable(
    store: "Store", artifacts: list[Manifest], roots: Iterable[ArtifactRef], live: dict[str, Holder]
) -> list[Manifest]:
    needed = _needed(store, roots, live)
    return [one for one in artifacts if store.ref(one).uri not in needed and one.key not in live]


def _whole(store: "Store", manifest: Manifest) -> Iterator[Garbage]:
    """An artifact: its pointer first, so that a kill in between leaves rubbish, not a broken artifact."""
    reason, path = "no kept run needs this artifact", epoch_path(manifest.key, manifest.epoch)
    yield Garbage(pointer_path(manifest.key, manifest.generation), 0, reason)
    yield Garbage(path, _size(store, path), reason)


def _leftovers(
    store: "Store", key: str, epochs: list[int], kept: set[tuple[str, int]], unfinished: bool
) -> Iterator[Garbage]:
    done = any(one == key for one, _ in kept)
    for epoch in epochs:
        path = epoch_path(key, epoch)
        if (key, epoch) in kept:
            pieces, reason = [f"{path}/seals", f"{path}/checkpoints"], "already committed"
        elif done or unfinished:
            pieces, reason = [path], "its attempt ended without winning, or it is quarantined"
        else:
            pieces, reason = [data_path(key, epoch)], "its attempt ended before it committed"
        for piece in pieces:
            size = _size(store, piece)
            if size:
                yield Garbage(piece, size, reason)


def _temporary(store: "Store") -> Iterator[Garbage]:
    top = store.backend.local("tmp")
    if top is None or not top.is_dir():
        return
    for path in sorted(top.iterdir()):
        if time.time() - path.lstat().st_mtime > STALE_SECONDS:
            yield Garbage(f"tmp/{path.name}", _local_size(path), "left by a killed writer")


def _local_size(path: Path) -> int:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(one.stat().st_size for one in files)


def _size(store: "Store", path: str) -> int:
    return sum(store.backend.walk(path).values())
