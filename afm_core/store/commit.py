"""Turning an attempt's output into a committed artifact: settle the data, write the manifest, race for the
pointer.
"""

import hashlib
import math
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afm_core.config import RunConfig, key_fields
from afm_core.store.backend import Backend, hash_file, sync
from afm_core.store.crash import crash_point
from afm_core.store.lease import Holder
from afm_core.store.manifests import (
    SIDECAR,
    canonical_json,
    content_digest,
    data_path,
    manifest_bytes,
    manifest_path,
    pointer_path,
)
from afm_core.store.refs import ArtifactKind, FileEntry, Manifest
from afm_core.store.stage import StageResult, StageSpec

if TYPE_CHECKING:
    from afm_core.store.store import Store


def store_data(backend: Backend, holder: Holder, output: Path, rows: Mapping[str, int]) -> list[FileEntry]:
    """Bring every file below `output` to its final place, durable and read-only, and hash it.

    Raises:
        ValueError: there is no digested file, or `rows` names one that is not there.
    """
    data = data_path(holder.key, holder.epoch)
    in_place = backend.local(data) == output
    entries = []
    for relative in _output_files(output):
        file = output / relative
        size, sha256 = _settle(file) if in_place else backend.put(file, f"{data}/{relative}")
        entries.append(FileEntry(path=relative, size=size, sha256=sha256, rows=rows.get(relative)))
    if in_place:
        for directory in {(output / entry.path).parent for entry in entries} | {output}:
            sync(directory)
    if all(entry.path.startswith(SIDECAR) for entry in entries):
        raise ValueError("the stage wrote no file below its output directory")
    unknown = sorted(set(rows) - {entry.path for entry in entries})
    if unknown:
        raise ValueError(f"the stage counted rows of files it did not write: {', '.join(unknown)}")
    return entries


def build_manifest(
    holder: Holder,
    spec: StageSpec,
    kind: ArtifactKind,
    sections: Iterable[str],
    result: StageResult,
    entries: Iterable[FileEntry],
    sidecar: Mapping[str, Any],
) -> Manifest:
    """The manifest of stored data. Host, attempt and times go into the undigested sidecar."""
    files = tuple(entry for entry in entries if not entry.path.startswith(SIDECAR))
    own = {
        "attempt": holder.attempt,
        "host": holder.process.host,
        "finished": time.time(),
        "python": sys.version.split()[0],
    }
    return Manifest(
        kind=kind,
        digest=content_digest(kind, files),
        stage=spec.stage,
        key=holder.key,
        generation=holder.generation,
        epoch=holder.epoch,
        files=files,
        sidecar_files=tuple(entry for entry in entries if entry.path.startswith(SIDECAR)),
        parents={**spec.inputs, **result.parents},
        config={name: _key_fields(spec, name) for name in sections},
        metrics={name: _finite(value) for name, value in result.metrics.items()},
        sidecar={**sidecar, **own},
    )


def publish(store: "Store", manifest: Manifest) -> Manifest:
    """Write the manifest, then race for the pointer; returns the winner's manifest, ours or another's."""
    while True:
        data = manifest_bytes(manifest)
        store.backend.write(manifest_path(manifest.key, manifest.epoch), data)
        crash_point("before_pointer")
        pointer = {
            "manifest": manifest_path(manifest.key, manifest.epoch),
            "sha256": hashlib.sha256(data).hexdigest(),
            "kind": manifest.kind,
            "digest": manifest.digest,
        }
        if store.backend.create(pointer_path(manifest.key, manifest.generation), canonical_json(pointer)):
            return manifest
        winner = store.lookup(manifest.key, manifest.generation)
        if winner is not None:
            return winner
        # The winner's copy turned out corrupt and is quarantined now: ours takes the next generation.
        manifest = manifest.model_copy(update={"generation": store.next_generation(manifest.key)})


def _key_fields(spec: StageSpec, name: str) -> dict[str, Any]:
    model = RunConfig.model_fields[name].annotation
    assert model is not None
    return key_fields(model.model_validate(spec.config.get(name, {})))


def _finite(value: float | int | str | bool | None) -> float | int | str | bool | None:
    """JSON has no NaN and no infinity: they become text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _output_files(output: Path) -> list[str]:
    """Relative paths of the files below a directory, sorted; raises ValueError for a link to a directory."""
    found = []
    for directory, subdirectories, names in os.walk(output):
        for name in subdirectories:
            if Path(directory, name).is_symlink():
                raise ValueError(f"{Path(directory, name)} is a link to a directory; copy its files instead")
        found += [Path(directory, name).relative_to(output).as_posix() for name in names]
    return sorted(found)


def _settle(file: Path) -> tuple[int, str]:
    """Make a file final where it lies: no second name that could change it, read-only, on the disk; hash it."""
    if file.is_symlink() or file.stat().st_nlink > 1:
        copy = file.with_name(f".{uuid.uuid4().hex}")
        shutil.copyfile(file, copy)
        copy.replace(file)
    file.chmod(0o444)
    sync(file)
    return hash_file(file)
