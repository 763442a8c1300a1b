"""Names and digests: the key of a stage, the digest of an artifact, and where things lie in a store.

    keys/KEY/GENERATION.json            pointer, made by conditional create: the winner's manifest, its sha256
    work/KEY/lease/EPOCH.json, .done    who works (or worked) on the key, and that it ended
    work/KEY/EPOCH/data/...             the artifact, where its attempt wrote it; sidecar/ is undigested
    work/KEY/EPOCH/manifest.json        written after the data, before the pointer
    work/KEY/EPOCH/seals, checkpoints   what a later attempt at the same key may resume from
    work/KEY/EPOCH/heartbeat            a counter
    quarantine/KEY-GENERATION.json      that generation is bad: never read it again

Stage key (design): sha256(stage, source digest, configuration section, input digests), here with the variant.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from afm_core.store.errors import ArtifactCorrupt
from afm_core.store.refs import ArtifactRef, FileEntry, Manifest

SCHEMA_VERSION = "1"
SIDECAR = "sidecar/"
MANIFEST_PATH = re.compile(r"work/[^/]+/\d+/manifest\.json\Z")


def canonical_json(value: Any) -> bytes:
    """Sorted, compact JSON: equal values give equal bytes. Raises ValueError for NaN and infinities."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def stage_key(
    stage: str,
    source_digest: str,
    config: Mapping[str, Any],
    inputs: Mapping[str, ArtifactRef],
    variant: str = "",
) -> str:
    """64 hex digits that name a stage's result before it exists.

    `config` is the key fields of the declared sections (see `key_fields`); of the inputs only names and
    digests count.
    """
    digests = {name: reference.digest for name, reference in inputs.items()}
    return _sha256({"stage": stage, "source": source_digest, "config": config, "inputs": digests, "variant": variant})


def content_digest(kind: str, files: Iterable[FileEntry], schema_version: str = SCHEMA_VERSION) -> str:
    """Digest of an artifact: its kind, schema version and the sorted (path, size, sha256) of its digested
    files.
    """
    entries = sorted((entry.path, entry.size, entry.sha256) for entry in files)
    return _sha256({"kind": str(kind), "schema_version": schema_version, "files": entries})


def _sha256(value: Any) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()


def manifest_bytes(manifest: Manifest) -> bytes:
    """A manifest as it is stored."""
    return json.dumps(manifest.model_dump(mode="json"), sort_keys=True, indent=1).encode()


def parse_manifest(data: bytes) -> Manifest:
    """Read a stored manifest and check that its digest is that of its files; raises ArtifactCorrupt."""
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        raise ArtifactCorrupt(f"its manifest cannot be read: {error.errors()[0]['msg']}") from error
    if content_digest(manifest.kind, manifest.files, manifest.schema_version) != manifest.digest:
        raise ArtifactCorrupt("its manifest's digest is not that of its files")
    return manifest


def all_files(manifest: Manifest) -> tuple[FileEntry, ...]:
    """Digested and sidecar files."""
    return manifest.files + manifest.sidecar_files


def pointer_path(key: str, generation: int) -> str:
    return f"keys/{key}/{generation:04d}.json"


def quarantine_path(key: str, generation: int) -> str:
    return f"quarantine/{key}-{generation:04d}.json"


def epoch_path(key: str, epoch: int) -> str:
    return f"work/{key}/{epoch:04d}"


def data_path(key: str, epoch: int) -> str:
    return f"{epoch_path(key, epoch)}/data"


def manifest_path(key: str, epoch: int) -> str:
    return f"{epoch_path(key, epoch)}/manifest.json"
