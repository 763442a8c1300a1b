"""Finding artifacts: what a user's text means, and where an artifact comes from."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from afm_core.config import ConfigError
from afm_core.store.errors import ArtifactMissing
from afm_core.store.manifests import MANIFEST_PATH
from afm_core.store.refs import ArtifactKind, ArtifactRef

if TYPE_CHECKING:
    from afm_core.store.store import Store

MINIMUM_PREFIX = 6


@dataclass(frozen=True)
class Lineage:
    """An artifact and, by input name, where it comes from, down to the roots. `missing`: not in this store
    any more.
    """

    ref: ArtifactRef
    stage: str = ""
    key: str = ""
    missing: bool = False
    metrics: dict[str, Any] = field(default_factory=dict)
    parents: dict[str, "Lineage"] = field(default_factory=dict)

    def walk(self) -> Iterator["Lineage"]:
        """This node and every ancestor, each artifact once, children before parents."""
        seen: set[str] = set()
        queue = [self]
        while queue:
            node = queue.pop(0)
            if node.ref.digest not in seen:
                seen.add(node.ref.digest)
                yield node
                queue.extend(node.parents.values())

    def as_json(self) -> dict[str, Any]:
        """Nested JSON values: artifact, stage, key, missing, metrics, parents."""
        return {
            "artifact": self.ref.model_dump(mode="json"),
            "stage": self.stage,
            "key": self.key,
            "missing": self.missing,
            "metrics": self.metrics,
            "parents": {name: node.as_json() for name, node in self.parents.items()},
        }


def lineage(store: "Store", ref: ArtifactRef, seen: dict[str, Lineage] | None = None) -> Lineage:
    """Walk the manifests' parents to the roots; an artifact that is gone becomes a node marked missing."""
    seen = {} if seen is None else seen
    name = f"{ref.kind}:{ref.digest}"
    if name not in seen:
        try:
            manifest = store.manifest(ref)
        except ArtifactMissing:
            seen[name] = Lineage(ref, missing=True)
        else:
            parents = {role: lineage(store, parent, seen) for role, parent in sorted(manifest.parents.items())}
            seen[name] = Lineage(
                store.ref(manifest), manifest.stage, manifest.key, False, dict(manifest.metrics), parents
            )
    return seen[name]


def find(store: "Store", text: str, kind: ArtifactKind | None = None) -> ArtifactRef:
    """What a user means: a digest, a unique prefix of at least 6 digits, KIND:DIGEST, or a manifest's URI.

    Raises:
        ConfigError: nothing, or several different artifacts, match.
    """
    wanted, separator, rest = text.partition(":")
    if separator and wanted in set(ArtifactKind):
        kind, text = ArtifactKind(wanted), rest
    known = store.ls(kind)
    path = MANIFEST_PATH.search(text)
    if path is not None:
        matches = [one for one in known if store.ref(one).uri.endswith(f"/{path.group()}")]
    elif len(text) < MINIMUM_PREFIX:
        raise ConfigError(
            f"artifact {text!r}: give at least {MINIMUM_PREFIX} digits of its digest; `afm artifacts ls` shows them"
        )
    else:
        matches = [one for one in known if one.digest.startswith(text.lower())]
    if not matches:
        for bad in store.quarantine_list():
            if bad.ref.digest.startswith(text.lower()) or (path is not None and bad.ref.uri.endswith(path.group())):
                raise ConfigError(f"{bad.ref.kind} {text!r} is quarantined ({bad.reason}); `afm run` makes it anew")
        raise ConfigError(f"no {kind or 'artifact'} {text!r} in {store.uri}; `afm artifacts ls` shows what is there")
    if len({one.digest for one in matches}) > 1:
        several = ", ".join(f"{one.kind}:{one.digest[:12]}" for one in matches[:5])
        raise ConfigError(f"{text!r} is not unique in {store.uri}: {several}; give more digits")
    return store.ref(matches[-1])
