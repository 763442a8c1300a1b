"""Artifacts: the commit protocol, manifests, names, leases, lineage, verification and garbage collection.

Open a store with `open_store`, run a stage inside `Store.attempt`, read with `Store.open`. Killing any
process at any instant leaves the store valid. See afm_core/store/manifests.py for the layout and attempt.py
for the protocol.
"""

from afm_core.store.attempt import StageAttempt
from afm_core.store.backend import Backend, hash_file, open_backend
from afm_core.store.browse import Lineage
from afm_core.store.claims import claimed
from afm_core.store.crash import CRASH_POINTS, crash_point
from afm_core.store.errors import ArtifactCorrupt, ArtifactMissing, LeaseHeld, StoreError, StoreUnavailable
from afm_core.store.gc import Collection, Garbage
from afm_core.store.lease import Holder, Process, Timing, gone, this_process
from afm_core.store.manifests import content_digest, stage_key
from afm_core.store.refs import ArtifactKind, ArtifactRef, FileEntry, Manifest
from afm_core.store.s3 import require_credentials, s3_errors, s3_file_system
from afm_core.store.stage import Artifact, StageContext, StageInterrupted, StageResult, StageSpec
from afm_core.store.store import Store, open_store
from afm_core.store.tables import read_table, write_table
from afm_core.store.verify import Quarantined, Verification

__all__ = [
    "CRASH_POINTS",
    "Artifact",
    "ArtifactCorrupt",
    "ArtifactKind",
    "ArtifactMissing",
    "ArtifactRef",
    "Backend",
    "Collection",
    "FileEntry",
    "Garbage",
    "Holder",
    "LeaseHeld",
    "Lineage",
    "Manifest",
    "Process",
    "Quarantined",
    "StageAttempt",
    "StageContext",
    "StageInterrupted",
    "StageResult",
    "StageSpec",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "Timing",
    "Verification",
    "claimed",
    "content_digest",
    "crash_point",
    "gone",
    "hash_file",
    "open_backend",
    "open_store",
    "read_table",
    "require_credentials",
    "s3_errors",
    "s3_file_system",
    "stage_key",
    "this_process",
    "write_table",
]
