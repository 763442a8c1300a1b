"""Sealed work: checkpoints, finished shards, scored rows, which a later attempt at the same key may resume
from.

A seal is a record written after its files: `work/KEY/EPOCH/seals/NAME.json` lists them with sizes and hashes.
Files without a record do not exist. Sealing a name again writes new files, replaces the record, then removes
the old files, so the name is always whole. An attempt writes below its own epoch only: it forgets an older
attempt's seal by a record that says so. Of several epochs the newest sound seal counts, and only those of the
same generation.
"""

import json
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from afm_core.store.backend import Backend, hash_file
from afm_core.store.crash import crash_point
from afm_core.store.manifests import epoch_path
from afm_core.store.refs import FileEntry


@dataclass(frozen=True)
class _Seal:
    name: str
    generation: int
    directory: str
    """Where the files lie in the store; empty: forgotten."""
    single: bool
    files: tuple[FileEntry, ...]


class Seals:
    """The seals that one attempt sees and makes. `cache`: a local directory for seals of a remote store."""

    def __init__(self, backend: Backend, key: str, epoch: int, generation: int, cache: Path) -> None:
        self._backend = backend
        self._key = key
        self._epoch = epoch
        self._generation = generation
        self._cache = cache
        self._checked: dict[str, Path] = {}

    def seal(self, name: str, source: Path) -> None:
        """Copy a file or directory under `name`; afterwards it survives any kill.

        Raises:
            FileNotFoundError: there is no such source. ValueError: an unusable name.
        """
        check_name(name)
        if not source.exists():
            raise FileNotFoundError(f"cannot seal {name!r}: {source} does not exist")
        directory = f"{epoch_path(self._key, self._epoch)}/checkpoints/{quote(name, safe='')}/{uuid.uuid4().hex}"
        entries = []
        for relative, file in _files(source):
            size, sha256 = self._backend.put(file, f"{directory}/{relative}")
            entries.append(FileEntry(path=relative, size=size, sha256=sha256))
        crash_point("during_checkpoint")
        old = self._record(self._epoch, name)
        self._write(_Seal(name, self._generation, directory, source.is_file(), tuple(entries)))
        if old is not None and old.directory:
            self._backend.delete(old.directory)

    def unseal(self, name: str) -> None:
        """Forget a name, whoever sealed it; its files are deleted if this attempt did."""
        check_name(name)
        old = self._record(self._epoch, name)
        self._write(_Seal(name, self._generation, "", False, ()))
        if old is not None and old.directory:
            self._backend.delete(old.directory)

    def sealed(self, prefix: str = "") -> dict[str, Path]:
        """Sorted names with `prefix` -> a local file or directory, read-only, checked against sizes and
        hashes.
        """
        found: dict[str, Path] = {}
        closed: set[str] = set()
        for epoch in self._epochs():
            for name in self._names(epoch):
                seal = self._record(epoch, name) if name.startswith(prefix) and name not in closed else None
                if seal is None or seal.generation != self._generation:
                    continue
                path = self._sound(seal) if seal.directory else None
                if path is not None:
                    found[name] = path
                if path is not None or not seal.directory:
                    closed.add(name)
        return dict(sorted(found.items()))

    def _epochs(self) -> list[int]:
        """Own epoch first, then older ones, newest first."""
        numbers = [int(name) for name in self._backend.names(f"work/{self._key}") if name.isdigit()]
        return sorted({number for number in numbers if number < self._epoch} | {self._epoch}, reverse=True)

    def _names(self, epoch: int) -> list[str]:
        listed = self._backend.names(f"{epoch_path(self._key, epoch)}/seals")
        return [unquote(name.removesuffix(".json")) for name in listed if name.endswith(".json")]

    def _record(self, epoch: int, name: str) -> _Seal | None:
        data = self._backend.read(self._record_path(epoch, name))
        if data is None:
            return None
        try:
            record: dict[str, Any] = json.loads(data)
            files = tuple(FileEntry.model_validate(entry) for entry in record["files"])
            return _Seal(name, record["generation"], record["directory"], record["single"], files)
        except (ValueError, KeyError, TypeError):
            return None

    def _write(self, seal: _Seal) -> None:
        record = {
            "generation": seal.generation,
            "directory": seal.directory,
            "single": seal.single,
            "files": [entry.model_dump() for entry in seal.files],
        }
        self._backend.write(self._record_path(self._epoch, seal.name), json.dumps(record, sort_keys=True).encode())

    def _record_path(self, epoch: int, name: str) -> str:
        return f"{epoch_path(self._key, epoch)}/seals/{quote(name, safe='')}.json"

    def _sound(self, seal: _Seal) -> Path | None:
        if seal.directory not in self._checked:
            path = self._localised(seal)
            if path is None or any(not _matches(path / entry.path, entry) for entry in seal.files):
                return None
            self._checked[seal.directory] = path / seal.files[0].path if seal.single else path
        return self._checked[seal.directory]

    def _localised(self, seal: _Seal) -> Path | None:
        local = self._backend.local(seal.directory)
        if local is not None:
            return local if local.is_dir() else None
        target = self._cache / seal.directory.rpartition("/")[2]
        shutil.rmtree(target, ignore_errors=True)
        try:
            for entry in seal.files:
                download(self._backend, f"{seal.directory}/{entry.path}", target / entry.path)
        except FileNotFoundError:
            return None
        return target


def check_name(name: str) -> None:
    """Raise ValueError unless `name` is a relative path without empty, `.` or `..` parts."""
    if any(part in ("", ".", "..") for part in name.split("/")) or "\\" in name or len(quote(name, safe="")) > 200:
        raise ValueError(f"{name!r} cannot name a sealed file: use a short relative path such as 'step-20'")


def download(backend: Backend, path: str, target: Path) -> None:
    """Copy an object to a local file; raises FileNotFoundError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as writer:
        for chunk in backend.chunks(path):
            writer.write(chunk)


def _files(source: Path) -> Iterator[tuple[str, Path]]:
    if source.is_file():
        yield source.name, source
        return
    for file in sorted(source.rglob("*")):
        if file.is_file():
            yield file.relative_to(source).as_posix(), file


def _matches(file: Path, entry: FileEntry) -> bool:
    try:
        return file.stat().st_size == entry.size and hash_file(file) == (entry.size, entry.sha256)
    except OSError:
        return False
