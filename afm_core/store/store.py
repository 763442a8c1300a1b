"""The store: look a key up, attempt it, open and verify what was committed. The store is the only truth.

Readers go through a pointer and its manifest, never through a listing of data. A corrupt artifact is
quarantined: its generation is never read again, and the key's next attempt writes the next generation.
"""

import hashlib
import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from afm_core.config import ConfigError
from afm_core.store.attempt import Sinks, StageAttempt
from afm_core.store.backend import Backend, open_backend
from afm_core.store.browse import Lineage, find, lineage
from afm_core.store.download import local_copy
from afm_core.store.errors import ArtifactCorrupt, ArtifactMissing
from afm_core.store.gc import Collection, collect
from afm_core.store.lease import Holder, Leases, Timing
from afm_core.store.manifests import (
    MANIFEST_PATH,
    all_files,
    data_path,
    manifest_path,
    parse_manifest,
    pointer_path,
    quarantine_path,
)
from afm_core.store.refs import ArtifactKind, ArtifactRef, Manifest
from afm_core.store.stage import Artifact, StageSpec
from afm_core.store.verify import Quarantined, Verification, quarantined, verify

FORMAT = 1
_MARKER = "store.json"


class Store:
    """Artifacts in one backend. `cache`: a local directory for artifacts of a remote store. Safe across
    processes.
    """

    def __init__(self, backend: Backend, cache: Path, timing: Timing | None = None) -> None:
        self.backend = backend
        self.cache = cache
        self.timing = timing or Timing()

    @property
    def uri(self) -> str:
        """The store's root."""
        return self.backend.uri

    @property
    def exists(self) -> bool:
        """Whether a store was ever made here; an absent one reads as empty."""
        return self.backend.read(_MARKER) is not None

    # --- names

    def lookup(self, key: str, generation: int | None = None) -> Manifest | None:
        """The newest sound artifact of a key, at or after `generation`; corrupt ones are quarantined on the
        way.

        Checks that the manifest is the committed one and that every file is there with its size (no hashing).
        """
        for number in reversed(self.generations(key)):
            if generation is not None and number < generation:
                break
            if self.quarantined(key, number):
                continue
            try:
                manifest = self.pointed(key, number)
                self._check_sizes(manifest)
                return manifest
            except ArtifactCorrupt as error:
                self.quarantine(key, number, str(error))
        return None

    def generations(self, key: str) -> list[int]:
        """Committed generations, ascending, quarantined ones included."""
        names = self.backend.names(f"keys/{key}")
        return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit())

    def next_generation(self, key: str) -> int:
        """The generation after every committed or quarantined one: pass it as `generation` to make a stage
        run again.
        """
        return max((*self.generations(key), *self._quarantined(key)), default=-1) + 1

    def ref(self, manifest: Manifest) -> ArtifactRef:
        """The reference of a committed manifest; its URI is where the manifest lies."""
        path = manifest_path(manifest.key, manifest.epoch)
        return ArtifactRef(kind=manifest.kind, digest=manifest.digest, uri=f"{self.uri}/{path}")

    def ls(self, kind: ArtifactKind | None = None) -> list[Manifest]:
        """Manifests of every readable, not quarantined artifact, oldest first."""
        found = [manifest for manifest in self._readable() if kind is None or manifest.kind == kind]
        return sorted(found, key=lambda one: (one.sidecar.get("finished", 0.0), one.key, one.generation))

    def find(self, text: str, kind: ArtifactKind | None = None) -> ArtifactRef:
        """What a user means by `text`; see afm_core.store.browse.find. Raises ConfigError."""
        return find(self, text, kind)

    def lineage(self, ref: ArtifactRef) -> Lineage:
        """Where an artifact comes from, down to the roots."""
        return lineage(self, ref)

    # --- content

    def manifest(self, ref: ArtifactRef) -> Manifest:
        """The manifest a reference names. If that copy is gone or quarantined, an equal artifact (same
        digest) serves.

        Raises:
            ArtifactMissing: this store has no sound artifact with that digest.
        """
        path = MANIFEST_PATH.search(ref.uri)
        if path is not None and (data := self.backend.read(path.group())) is not None:
            try:
                manifest = parse_manifest(data)
                if manifest.digest == ref.digest and self._current(manifest):
                    self._check_sizes(manifest)
                    return manifest
            except ArtifactCorrupt:
                pass  # look-up below quarantines it if a pointer names it
        for other in self.ls(ref.kind):
            sound = self.lookup(other.key, other.generation) if other.digest == ref.digest else None
            if sound is not None and sound.digest == ref.digest:
                return sound
        raise ArtifactMissing(f"no sound {ref.kind} {ref.digest[:12]} in {self.uri}: run the stage that makes it again")

    def open(self, ref: ArtifactRef) -> Artifact:
        """Open an artifact: its manifest, and a local directory with its files (downloaded and hashed if
        remote).

        Raises:
            ArtifactMissing: it is not in this store. ArtifactCorrupt: a downloaded file is not what was
            committed.
        """
        manifest = self.manifest(ref)
        local = self.backend.local(data_path(manifest.key, manifest.epoch))
        return Artifact(ref=self.ref(manifest), manifest=manifest, path=local or local_copy(self, manifest))

    def verify(self, ref: ArtifactRef | None = None) -> list[Verification]:
        """Hash every file of one artifact, or of all, and quarantine the corrupt ones; problems name the
        files.
        """
        return verify(self, ref)

    def quarantine_list(self) -> list[Quarantined]:
        """What verification or use found corrupt earlier, as long as its files are there."""
        return quarantined(self)

    def gc(
        self, roots: Iterable[ArtifactRef] | None = None, *, unfinished: bool = False, dry_run: bool = True
    ) -> Collection:
        """Delete, or only list, what nobody needs; see afm_core.store.gc."""
        return collect(self, roots, unfinished=unfinished, dry_run=dry_run)

    def quarantined(self, key: str, generation: int) -> bool:
        """Whether a generation was marked as bad."""
        return self.backend.read(quarantine_path(key, generation)) is not None

    def quarantine(self, key: str, generation: int, reason: str) -> None:
        """Mark a generation as bad, for ever; its files stay until garbage collection."""
        record = {"reason": reason, "mark": uuid.uuid4().hex}
        self.backend.create(quarantine_path(key, generation), json.dumps(record).encode())

    # --- work

    def attempt(
        self,
        *,
        key: str,
        spec: StageSpec,
        kind: ArtifactKind,
        sections: tuple[str, ...],
        scratch: Path,
        generation: int | None = None,
        attempt_id: str | None = None,
        wait: bool = True,
        stopping: threading.Event | None = None,
        on_wait: Callable[[Holder], None] | None = None,
        progress: Callable[[int, int, str], None] | None = None,
        metrics: Callable[[Mapping[str, float], int], None] | None = None,
    ) -> StageAttempt:
        """An attempt at a key, to be used as a context manager; see afm_core.store.attempt.

        `generation` (default: the spec's) is the oldest acceptable one. `scratch` holds temporary files,
        deleted afterwards. With wait=False a live holder elsewhere raises LeaseHeld; else `on_wait` is called
        every poll.
        """
        return StageAttempt(
            store=self,
            key=key,
            spec=spec,
            kind=kind,
            sections=sections,
            workspace=scratch,
            generation=spec.generation if generation is None else generation,
            attempt_id=attempt_id or uuid.uuid4().hex,
            wait=wait,
            sinks=Sinks(progress, metrics, on_wait),
            stopping=stopping or threading.Event(),
        )

    def leases(self) -> Leases:
        """A fresh observer of this store's leases."""
        return Leases(self.backend, self.timing)

    # --- inside

    def pointed(self, key: str, generation: int) -> Manifest:
        """The manifest a pointer names, proven to be the committed one; raises ArtifactCorrupt."""
        try:
            pointer = json.loads(self.backend.read(pointer_path(key, generation)) or b"")
            path, sha256 = pointer["manifest"], pointer["sha256"]
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactCorrupt("its pointer cannot be read") from error
        data = self.backend.read(path)
        if data is None:
            raise ArtifactCorrupt("its manifest is gone")
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ArtifactCorrupt("its manifest is not the one that was committed")
        return parse_manifest(data)

    def _quarantined(self, key: str) -> Iterator[int]:
        for name in self.backend.names("quarantine"):
            if name.startswith(f"{key}-"):
                yield int(name[len(key) + 1 : -len(".json")])

    def _readable(self) -> Iterator[Manifest]:
        bad = set(self.backend.names("quarantine"))
        for key in self.backend.names("keys"):
            for number in self.generations(key):
                if f"{key}-{number:04d}.json" not in bad:
                    try:
                        yield self.pointed(key, number)
                    except ArtifactCorrupt:
                        continue  # look-up and verify report and quarantine it

    def _current(self, manifest: Manifest) -> bool:
        if self.quarantined(manifest.key, manifest.generation):
            return False
        pointer = self.backend.read(pointer_path(manifest.key, manifest.generation))
        return pointer is not None and manifest_path(manifest.key, manifest.epoch).encode() in pointer

    def _check_sizes(self, manifest: Manifest) -> None:
        present = self.backend.walk(data_path(manifest.key, manifest.epoch))
        for entry in all_files(manifest):
            if present.get(entry.path) != entry.size:
                state = "is gone" if entry.path not in present else f"has {present[entry.path]} bytes, not {entry.size}"
                raise ArtifactCorrupt(f"{entry.path} {state}")


def open_store(uri: str, cache: Path, timing: Timing | None = None, *, create: bool = True) -> Store:
    """Open a store, and prove once (when it is new) that it really refuses a second conditional create.

    With `create=False` (for those who only read) nothing is made or written: an absent store reads as empty, and
    `Store.exists` tells.

    Raises:
        ConfigError: an unusable URI or store, one without conditional create, or one of a newer format.
    """
    backend = open_backend(uri, create)
    marker = backend.read(_MARKER)
    if marker is None and not create:
        return Store(backend, cache, timing)
    if marker is None:
        _prove(backend)
        marker = backend.read(_MARKER)
    try:
        found = json.loads(marker or b"{}").get("format")
    except ValueError:
        found = None
    if found != FORMAT:
        raise ConfigError(
            f"store {uri}: {_MARKER} has format {found!r}, this version reads {FORMAT}; use another store"
        )
    return Store(backend, cache, timing)


def _prove(backend: Backend) -> None:
    def marker() -> bytes:
        return json.dumps({"format": FORMAT, "mark": uuid.uuid4().hex}).encode()

    backend.create(_MARKER, marker())
    if backend.create(_MARKER, marker()):
        backend.delete(_MARKER)
        raise ConfigError(
            f"store {backend.uri}: the server ignores conditional creates (If-None-Match), so two attempts could both "
            "win; use another server or a local directory"
        )
