"""The model registry: versions of one MLflow registered model, told apart by their artifact's digest.

Registration is no logging: it is retried, and then it fails. MLflow gets URI and digest; the weights stay in
the store. The champion is the version with the alias `champion`; a version remembers the digest of the one it
beat.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

from afm_core.config import ConfigError, RunConfig
from afm_core.store import ArtifactKind, ArtifactRef
from afm_core.tracking.client import TrackingError, is_absent, open_client, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

ALIAS = "champion"
DIGEST_TAG = "afm.digest"
URI_TAG = "afm.uri"
PREDECESSOR_TAG = "afm.predecessor"
POOL_TAG = "afm.pool"
POOL_VERSION_TAG = "afm.pool.version"
POOL_KNOWN_TAG = "afm.pool.known"
"""Of a retrained model: the task pool, its version, and the version that the model it was judged against knew."""
RETRY_SECONDS = (0.5, 2.0, 5.0)

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Champion:
    """A registered version: its number, the model artifact it stands for, and its tags (lineage,
    predecessor).
    """

    version: str
    ref: ArtifactRef
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def predecessor(self) -> str | None:
        """Digest of the model that this one beat."""
        return self.tags.get(PREDECESSOR_TAG)


class Registry:
    """One registered model. Every method raises TrackingError when MLflow does not do it after retries.

    Raises (all methods, too):
        ConfigError: the tracking URI is of no known kind.
    """

    def __init__(self, uri: str, model_name: str) -> None:
        self._uri = uri
        self._name = model_name
        self._client: MlflowClient | None = None

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """The registry of a run's configuration."""
        return cls(tracking_uri(config.tracking), config.registry.model_name)

    def champion(self) -> Champion | None:
        """The version with the alias, or None. Asking makes no database."""
        if is_absent(self._uri):
            return None
        version = self._call("ask for the champion", self._aliased)
        return None if version is None else _champion(version)

    def versions(self) -> list[Champion]:
        """Every registered version, oldest first. Asking makes no database."""
        if is_absent(self._uri):
            return []
        found = self._call("list the versions", self._search)
        return sorted((_champion(one) for one in found), key=lambda one: int(one.version))

    def find(self, digest: str) -> Champion | None:
        """The version of an artifact, or None."""
        return next((one for one in self.versions() if one.ref.digest == digest), None)

    def opponent(self, challenger: ArtifactRef) -> Champion | None:
        """Whom a challenger has to beat: the champion, or, if it is the champion itself, the one it beat.

        So a finished run, repeated, asks the same question again and finds its answer in the store. None: no
        registered version has to be beaten (the base model stands in).
        """
        champion = self.champion()
        if champion is None or champion.ref.digest != challenger.digest:
            return champion
        return self.find(champion.predecessor) if champion.predecessor else None

    def register(self, ref: ArtifactRef, tags: Mapping[str, str] | None = None) -> str:
        """Register an artifact with its lineage as tags; the same digest gives the same version again, with these tags
        (one that was rejected earlier may win today).
        """
        known = self.find(ref.digest)
        if known is not None:
            self.tag(known.version, {name: text for name, text in (tags or {}).items() if known.tags.get(name) != text})
            return known.version
        everything = {**(tags or {}), DIGEST_TAG: ref.digest, URI_TAG: ref.uri, "afm.kind": str(ref.kind)}
        return self._call("register the model", lambda: self._create(ref, everything))

    def tag(self, version: str, tags: Mapping[str, str]) -> None:
        """Set tags of a version."""

        def write() -> None:
            for name, text in tags.items():
                self._opened().set_model_version_tag(self._name, version, name, text)

        if tags:
            self._call("tag the version", write)

    def set_champion(self, version: str) -> None:
        """Move the alias to a version."""

        def move() -> None:
            self._opened().set_registered_model_alias(self._name, ALIAS, version)

        self._call("set the champion", move)

    def _opened(self) -> "MlflowClient":
        if self._client is None:
            self._client = open_client(self._uri)
        return self._client

    def _aliased(self) -> Any:
        from mlflow.exceptions import MlflowException

        try:
            return self._opened().get_model_version_by_alias(self._name, ALIAS)
        except MlflowException as error:
            if _absent(error):
                return None
            raise

    def _search(self) -> list[Any]:
        text, token, found = f"name = '{self._name}'", None, []
        while True:
            page = self._opened().search_model_versions(text, page_token=token)
            found += page
            token = page.token
            if not token:
                return found

    def _create(self, ref: ArtifactRef, tags: dict[str, str]) -> str:
        from mlflow.exceptions import MlflowException

        client = self._opened()
        try:
            client.create_registered_model(self._name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        repeated = next((one for one in self._search() if one.tags.get(DIGEST_TAG) == ref.digest), None)
        if repeated is None:  # else an earlier try got through although its answer was lost
            repeated = client.create_model_version(self._name, _source(ref), tags=tags)
        return str(repeated.version)

    def _call(self, what: str, action: Callable[[], ResultT]) -> ResultT:
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        for pause in (*RETRY_SECONDS, None):
            try:
                return action()
            except ConfigError:
                raise
            except (MlflowException, SQLAlchemyError, OSError) as error:
                if pause is None or _final(error):
                    raise TrackingError(f"MLflow at {self._uri}: cannot {what} ({error})") from error
                time.sleep(pause)
        raise AssertionError("unreachable")


def _champion(version: Any) -> Champion:
    tags = {str(name): str(value) for name, value in version.tags.items()}
    kind = ArtifactKind(tags.get("afm.kind", ArtifactKind.MODEL))
    ref = ArtifactRef(kind=kind, digest=tags.get(DIGEST_TAG, ""), uri=tags.get(URI_TAG, str(version.source)))
    return Champion(str(version.version), ref, tags)


def _source(ref: ArtifactRef) -> str:
    """The version's source. A server accepts no local paths, so a local store gets a scheme of its own."""
    return ref.uri if "://" in ref.uri and not ref.uri.startswith("file:") else f"afm://artifact/{ref.digest}"


def _absent(error: Exception) -> bool:
    return getattr(error, "error_code", "") in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND")


def _final(error: Exception) -> bool:
    """Whether trying again is useless: MLflow understood the request and refused it."""
    refusals = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "PERMISSION_DENIED", "UNAUTHENTICATED")
    return getattr(error, "error_code", "") in refusals
