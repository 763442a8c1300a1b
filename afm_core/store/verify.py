"""Full verification: every byte of an artifact against its manifest, the manifest against its pointer."""

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from afm_core.store.errors import ArtifactCorrupt
from afm_core.store.manifests import MANIFEST_PATH, all_files, data_path, manifest_path, pointer_path
from afm_core.store.refs import ArtifactKind, ArtifactRef, FileEntry, Manifest

if TYPE_CHECKING:
    from afm_core.store.store import Store

UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Verification:
    """The result of hashing one artifact: `problems` is empty if every byte is what was committed.

    `bytes` counts the artifact's files. Where the manifest or the pointer is damaged, `ref` is what the other one
    still tells; where both are, its digest is "unreadable" and its kind means nothing.
    """

    ref: ArtifactRef
    stage: str
    bytes: int
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Quarantined:
    """An artifact that was found corrupt earlier and whose files still lie in the store (until garbage collection).

    `ref` as in Verification; `replaced`: the key has a sound artifact again.
    """

    ref: ArtifactRef
    stage: str
    generation: int
    reason: str
    replaced: bool


def quarantined(store: "Store") -> list[Quarantined]:
    """What is in quarantine, by key and generation."""
    found = []
    for name in store.backend.names("quarantine"):
        key, _, number = name.removesuffix(".json").rpartition("-")
        ref = _damaged(store, key, int(number))
        manifest = MANIFEST_PATH.search(ref.uri)
        if not store.backend.walk(f"{manifest.group().rpartition('/')[0]}/data" if manifest else f"work/{key}"):
            continue
        reason = _field(store, f"quarantine/{name}", "reason")
        stage = _field(store, manifest.group(), "stage") if manifest else ""
        found.append(Quarantined(ref, stage, int(number), reason, store.lookup(key) is not None))
    return found


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
            if ref is None or result.ref.digest in (ref.digest, UNREADABLE):
                results.append(result)
    return results


def _verified(store: "Store", key: str, generation: int) -> Verification:
    try:
        manifest = store.pointed(key, generation)
    except ArtifactCorrupt as error:
        store.quarantine(key, generation, str(error))
        return Verification(_damaged(store, key, generation), "", 0, (str(error),))
    problems = []
    for entry in all_files(manifest):
        problem = _problem(store, manifest, entry)
        if problem:
            problems.append(f"{entry.path}: {problem}")
    if problems:
        store.quarantine(key, generation, "; ".join(problems))
    total = sum(entry.size for entry in all_files(manifest))
    return Verification(store.ref(manifest), manifest.stage, total, tuple(problems))


def _damaged(store: "Store", key: str, generation: int) -> ArtifactRef:
    """A name for an artifact that cannot be read through its pointer, from whatever is still legible."""
    epochs = (name for name in store.backend.names(f"work/{key}") if name.isdigit())
    paths = [pointer_path(key, generation), *(manifest_path(key, int(epoch)) for epoch in epochs)]
    for path in paths:
        try:
            record = json.loads(store.backend.read(path) or b"")
            if record.get("generation", generation) == generation:
                uri = f"{store.uri}/{record.get('manifest', path)}"
                return ArtifactRef(kind=ArtifactKind(record["kind"]), digest=str(record["digest"]), uri=uri)
        except (ValueError, KeyError, AttributeError):
            continue
    return ArtifactRef(kind=ArtifactKind.CORPUS, digest=UNREADABLE, uri=f"{store.uri}/{paths[0]}")


def _field(store: "Store", path: str, name: str) -> str:
    """A text field of a JSON object, '' where it cannot be read."""
    try:
        return str(json.loads(store.backend.read(path) or b"")[name])
    except (ValueError, KeyError, TypeError):
        return ""


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
