"""Local copies of a remote store's artifacts: downloaded once, hashed on arrival, put in place by one rename."""

import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from afm_core.store.backend import hash_file
from afm_core.store.errors import ArtifactCorrupt
from afm_core.store.manifests import all_files, data_path
from afm_core.store.refs import FileEntry, Manifest
from afm_core.store.seals import download

if TYPE_CHECKING:
    from afm_core.store.store import Store


def local_copy(store: "Store", manifest: Manifest) -> Path:
    """The directory with an artifact's files below the store's cache, read-only.

    Raises:
        ArtifactCorrupt: a file is not what was committed; the artifact is quarantined.
    """
    name = f"{manifest.digest[:24]}-{manifest.key[:16]}-{manifest.epoch}"
    target = store.cache / "artifacts" / name
    if all(_has_size(target / entry.path, entry.size) for entry in all_files(manifest)):
        return target
    building = target.with_name(f"{name}.{uuid.uuid4().hex[:8]}")
    try:
        for entry in all_files(manifest):
            _fetch(store, manifest, entry, building / entry.path)
        shutil.rmtree(target, ignore_errors=True)
        building.replace(target)
    except OSError:
        if not target.is_dir():  # else another process was faster
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def _fetch(store: "Store", manifest: Manifest, entry: FileEntry, target: Path) -> None:
    path = f"{data_path(manifest.key, manifest.epoch)}/{entry.path}"
    download(store.backend, path, target)
    if hash_file(target) != (entry.size, entry.sha256):
        store.quarantine(manifest.key, manifest.generation, f"{entry.path}: wrong hash at download")
        raise ArtifactCorrupt(f"{store.uri}/{path} is not what was committed; run its stage again")
    os.chmod(target, 0o444)


def _has_size(file: Path, size: int) -> bool:
    try:
        return file.stat().st_size == size
    except OSError:
        return False
