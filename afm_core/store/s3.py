"""An S3 bucket as a store, through s3fs with its caches off.

Conditional create is If-None-Match. Because a client library may repeat a put whose answer was lost, a
refused create is checked once more: if the object holds the caller's own bytes, the first try had won.
Endpoint and credentials come from the environment only. Waiting is bounded: a server that does not answer is
reported within seconds.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from afm_core.config import ConfigError
from afm_core.store.backend import CHUNK_BYTES, hash_file
from afm_core.store.errors import StoreUnavailable

CONNECT_SECONDS = 3
READ_SECONDS = 60
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
)


class S3Backend:
    """s3://bucket/prefix. The constructor asks the server once and raises ConfigError if it cannot be used."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._prefix = self.uri.removeprefix("s3://")
        if not self._prefix.strip("/") or self._prefix.startswith("/"):
            raise ConfigError(f"store {uri}: name a bucket, as in s3://bucket/prefix")
        self._files = s3_file_system(f"store {uri}")
        try:
            self.read("store.json")
        except StoreUnavailable as error:
            raise ConfigError(f"{error}; start the server or correct AWS_ENDPOINT_URL") from error

    def local(self, path: str) -> Path | None:
        return None

    def create(self, path: str, data: bytes) -> bool:
        for _ in range(3):
            with self._translated():
                try:
                    self._files.pipe_file(self._full(path), data, mode="create")
                    return True
                except FileNotFoundError:
                    raise
                except OSError as error:
                    if not _refused_by_condition(error):
                        raise
            present = self.read(path)
            if present is not None:
                return present == data
        raise StoreUnavailable(f"store {self.uri}: {path} can be neither created nor read")

    def write(self, path: str, data: bytes, durable: bool = True) -> None:
        with self._translated():
            self._files.pipe_file(self._full(path), data)

    def read(self, path: str) -> bytes | None:
        with self._translated():
            try:
                return bytes(self._files.cat_file(self._full(path)))
            except FileNotFoundError:
                return None

    def chunks(self, path: str) -> Iterator[bytes]:
        with self._translated(missing_is_fine=True):
            with self._files.open(self._full(path), "rb", cache_type="none") as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    yield chunk

    def put(self, source: Path, path: str) -> tuple[int, str]:
        size, sha256 = hash_file(source)
        with self._translated():
            self._files.put_file(str(source), self._full(path))
        return size, sha256

    def names(self, path: str) -> list[str]:
        with self._translated():
            try:
                listed = self._files.ls(self._full(path), detail=False, refresh=True)
            except FileNotFoundError:
                return []
        below = f"{self._full(path).rstrip('/')}/"
        return sorted({one[len(below) :].strip("/") for one in listed if one.startswith(below)} - {""})

    def walk(self, path: str) -> dict[str, int]:
        below = f"{self._full(path).rstrip('/')}/"
        with self._translated():
            found = self._files.find(below, detail=True)
        return {name[len(below) :]: int(info["size"]) for name, info in found.items() if name.startswith(below)}

    def delete(self, path: str) -> None:
        full = self._full(path)
        names = [f"{full.rstrip('/')}/{name}" for name in self.walk(path)]
        with self._translated():
            if not names and self._files.exists(full):
                names = [full]
            for start in range(0, len(names), 500):
                self._files.rm(names[start : start + 500])

    def _full(self, path: str) -> str:
        return f"{self._prefix}/{path}"

    def _translated(self, missing_is_fine: bool = False) -> AbstractContextManager[None]:
        return s3_errors(f"store {self.uri}", missing_is_fine)


@contextmanager
def s3_errors(what: str, missing_is_fine: bool = False) -> Iterator[None]:
    """Whatever S3 says in the block as one of our errors, with the endpoint; `what` begins the message.

    Raises:
        ConfigError: access is refused, or (unless `missing_is_fine`) the bucket is missing.
        StoreUnavailable: there is no answer.
    """
    from botocore.exceptions import BotoCoreError, NoCredentialsError

    endpoint = _endpoint()
    place = what + (f" at {endpoint}" if endpoint else "")
    try:
        yield
    except (PermissionError, NoCredentialsError) as error:
        raise ConfigError(
            f"{place}: access refused ({error}); check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error
    except FileNotFoundError as error:
        if missing_is_fine:
            raise
        raise ConfigError(f"{place}: there is no such bucket ({error}); create it first") from error
    except (OSError, BotoCoreError) as error:
        raise StoreUnavailable(f"{place}: does not answer ({error})") from error


def require_credentials(what: str) -> None:
    """Raises ConfigError, beginning with `what`, if the environment names no S3 credentials."""
    if not any(os.environ.get(name) for name in _CREDENTIALS):
        raise ConfigError(f"{what}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")


def s3_file_system(what: str) -> Any:
    """s3fs with bounded waiting and without caches, at the environment's endpoint with its credentials.

    Raises:
        ConfigError: there are no credentials; `what` begins the message.
    """
    require_credentials(what)
    import s3fs

    endpoint = _endpoint()
    config: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        "retries": {"max_attempts": 2, "mode": "standard"},
    }
    if endpoint:
        config["s3"] = {"addressing_style": "path"}
    return s3fs.S3FileSystem(
        key=os.environ.get("AWS_ACCESS_KEY_ID") or None,
        secret=os.environ.get("AWS_SECRET_ACCESS_KEY") or None,
        token=os.environ.get("AWS_SESSION_TOKEN") or None,
        endpoint_url=endpoint,
        config_kwargs=config,
        use_listings_cache=False,
        skip_instance_cache=True,
    )


def _endpoint() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def _refused_by_condition(error: OSError) -> bool:
    """A 412, or the 409 of a server that saw two conditional creates at once."""
    text = str(error).lower()
    return "pre-condition" in text or "precondition" in text or "conditional" in text or "conflict" in text
