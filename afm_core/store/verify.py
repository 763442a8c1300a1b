"""Full verification: every byte of an artifact against its manifest, the manifest against its pointer."""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from afm_core.store.errors import ArtifactCorrupt
from afm_core.store.manifests import MANIFEST_PATH, all_files, data_path, pointer_path
from afm_core.store.refs import ArtifactRef, FileEntry, Manifest

if TYPE_CHECKING:
    from afm_core.store.store import Store


@dataclass(frozen=True)
class Verification:
    """The result of hashing one artifact: `problems` is empty if every byte is what was committed.

    `ref` is None when the manifest itself is unreadable. `bytes` counts the artifact's files.
    """

    ref: ArtifactRef | None
    uri: str
    stage: str
    bytes: int
    problems: tuple[str, ...] = ()


def verify(store: "Store", ref: ArtifactRef | None = None) -> list[Verification]:
    """Hash every file of one artifact, or of all, and quarantine the corrupt ones; problems name the files."""
    path = MANIFEST_PATH.search(ref.uri) if ref is not None else None
    keys = [path.group().split("/")[1]] if path else store.backend.names("keys")
    results = []
    for key in keys:
        for number in store.generations(key):
            if store.quarantined(key, number):
                continue
            result = _verified(store, key, number)
            if ref is None or result.ref is None or result.ref.digest == ref.digest:
                results.append(result)
    return results


def _verified(store: "Store", key: str, generation: int) -> Verification:
    try:
        manifest = store.pointed(key, generation)
    except ArtifactCorrupt as error:
        store.quarantine(key, generation, str(error))
        return Verification(None, f"{store.uri}/{pointer_path(key, generation)}", "", 0, (str(error),))
    problems = []
    for entry in all_files(manifest):
        problem = _problem(store, manifest, entry)
        if problem:
            problems.append(f"{entry.path}: {problem}")
    if problems:
        store.quarantine(key, generation, "; ".join(problems))
    reference, total = store.ref(manifest), sum(entry.size for entry in all_files(manifest))
    return Verification(reference, reference.uri, manifest.stage, total, tuple(problems))


def _problem(store: "Store", manifest: Manifest, entry: FileEntry) -> str:
    digest, size = hashlib.sha256(), 0
    try:
        for chunk in store.backend.chunks(f"{data_path(manifest.key, manifest.epoch)}/{entry.path}"):
            digest.update(chunk)
            size += len(chunk)
    except FileNotFoundError:
        return "the file is gone"
    if size != entry.size:
        return f"{size} bytes, committed were {entry.size}"
    return "" if digest.hexdigest() == entry.sha256 else "its content was changed (SHA-256 differs)"
