"""What a retraining starts from: the versions of the task pool, the champion, and how much of the pool it knows.

A repeated retraining must ask the same question, so that all of it is cached. The champion that this very retraining
crowned is therefore no beginning: its predecessor is, as at the gate (`Registry.opponent`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from afm_core.config import RunConfig, SftStart
from afm_core.evaluation import Outcome, too_few
from afm_core.store import ArtifactRef, Store
from afm_core.taskcraft import PoolVersion, find_version, pool_versions
from afm_core.tracking import POOL_KNOWN_TAG, POOL_TAG, POOL_VERSION_TAG, Champion, Registry


@dataclass(frozen=True)
class Retraining:
    """`versions`: 1 to the one that is trained for. `known`: the version up to which the champion was trained, 0: none.

    `champion`: the model to start from, if the configuration says so; None: there is none, the base model stands in.
    """

    versions: tuple[PoolVersion, ...]
    known: int
    champion: Champion | None

    @property
    def pool(self) -> PoolVersion:
        """The version that is trained for."""
        return self.versions[-1]

    @property
    def inputs(self) -> dict[str, ArtifactRef]:
        """What the stage `pool` is given of the pool."""
        known = {"known": self.versions[self.known - 1].ref} if self.known else {}
        return {"pool": self.pool.ref, **known}

    def record(self) -> dict[str, Any]:
        """What a run's record tells of the pool."""
        return {
            "name": self.pool.pool,
            "version": self.pool.version,
            "digest": self.pool.ref.digest,
            "known": self.known,
        }

    def start(self, config: RunConfig) -> ArtifactRef | None:
        """The champion's model if SFT goes on from it, else None: from the base model."""
        goes_on = config.sft.start is SftStart.CHAMPION and self.champion is not None
        return self.champion.ref if goes_on and self.champion else None

    def role(self, version: int, config: RunConfig) -> str:
        """The input of `curate` that a version's demonstrations are (0: those of the profile's own tasks).

        What the model that is trained further has learned already is only replayed.
        """
        kind = "replay" if version <= self.known and self.start(config) is not None else "demonstrations"
        return f"{kind}.{version}" if version else kind

    def refusal(self, metrics: Mapping[str, Any], config: RunConfig) -> dict[str, Any] | None:
        """What the gate must say, known from the metrics of the stage `pool` before anything is trained: there are too
        few new gate tasks. The form of a run record's `champion`; None if the gate can decide.
        """
        new, limit = int(metrics["new/gate"]), config.evaluation.gate_limit
        reason = too_few(min(new, limit or new), config.registry)
        if reason is None:
            return None
        if limit is not None and limit < new:
            reason += f"; there are {new}, but evaluation.gate_limit = {limit}"
        champion = self.champion.ref.digest if self.champion else None
        return {"outcome": Outcome.REFUSED_TOO_FEW.value, "champion": champion, "version": None, "reason": reason}


def plan_retraining(store: Store, registry: Registry, pool: str, version: int | None = None) -> Retraining:
    """Look pool and registry up. `version` None: the newest.

    Raises:
        ConfigError: no such pool or version. StoreError, TrackingError: the store or MLflow does not answer.
    """
    wanted = find_version(store, pool, version)
    versions = tuple(pool_versions(store, pool)[: wanted.version])
    champion = registry.champion()
    tags = champion.tags if champion is not None else {}
    if champion is None or tags.get(POOL_TAG) != pool:
        return Retraining(versions, 0, champion)
    if int(tags[POOL_VERSION_TAG]) < wanted.version:
        return Retraining(versions, int(tags[POOL_VERSION_TAG]), champion)
    before = registry.find(champion.predecessor) if champion.predecessor else None
    return Retraining(versions, min(int(tags[POOL_KNOWN_TAG]), wanted.version), before)
