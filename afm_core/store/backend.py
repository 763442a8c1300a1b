"""Where bytes live: one small protocol, and its implementation for a local directory.

Everything above relies on two promises of a backend: `create` is a conditional create (of any number of
racing callers exactly one is told that it won), and an object is seen whole or not at all. Paths are relative
to the store's root, with forward slashes. Listings are never cached.
"""

import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from afm_core.config import ConfigError

CHUNK_BYTES = 8 * 2**20


class Backend(Protocol):
    """The operations the store needs. Missing objects give None or an empty listing, never an error.

    Raises (all methods):
        ConfigError: the store refuses: no permission, read-only, unknown bucket, wrong credentials.
        StoreUnavailable, OSError: it cannot be reached just now, or its disk is full.
    """

    uri: str

    def local(self, path: str) -> Path | None:
        """The object's path in the local file system, or None when the store is elsewhere."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Conditional create; True for the one caller that created it. `data` must differ from caller to
        caller.
        """
        ...

    def write(self, path: str, data: bytes, durable: bool = True) -> None:
        """Write or replace, atomically. Only for what one attempt alone owns."""
        ...

    def read(self, path: str) -> bytes | None:
        """The whole object, or None."""
        ...

    def chunks(self, path: str) -> Iterator[bytes]:
        """The object in pieces of at most CHUNK_BYTES; raises FileNotFoundError."""
        ...

    def put(self, source: Path, path: str) -> tuple[int, str]:
        """Copy a local file into the store; returns its size in bytes and its SHA-256."""
        ...

    def names(self, path: str) -> list[str]:
        """Sorted names of what lies directly below a directory."""
        ...

    def walk(self, path: str) -> dict[str, int]:
        """Every file below a directory: path relative to it -> size in bytes."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file or a whole directory; nothing happens if it is not there."""
        ...


def open_backend(uri: str, create: bool = True) -> Backend:
    """The backend of a directory path, a file:// URI or s3://bucket/prefix; `create`: a directory that is not there is
    made.

    Raises:
        ConfigError: another scheme, or a store that cannot be reached or used.
    """
    parts = urlsplit(uri)
    if parts.scheme == "s3":
        from afm_core.store.s3 import S3Backend

        return S3Backend(uri)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ConfigError(f"store {uri}: write a local directory as file:///path, with three slashes")
        return LocalBackend(Path(unquote(parts.path)), create)
    if "://" in uri or not uri.strip():
        raise ConfigError(
            f"store {uri!r}: only a directory, file:///path or s3://bucket/prefix can be a store, because others "
            "do not offer a conditional create"
        )
    return LocalBackend(Path(uri), create)


def hash_file(path: Path) -> tuple[int, str]:
    """Size in bytes and SHA-256 of a local file."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


class LocalBackend:
    """A directory. Conditional create is link(2) of a finished temporary file, so the winner's object is
    whole.

    Files and directories are synced before anything that refers to them is written.
    """

    def __init__(self, root: Path, create: bool = True) -> None:
        self._root = root.expanduser().absolute()
        self.uri = str(self._root)
        if not create:
            return
        try:
            (self._root / "tmp").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if not self._root.is_dir():
                raise self._refusal(error) from error

    def local(self, path: str) -> Path:
        return self._root / path

    def create(self, path: str, data: bytes) -> bool:
        target = self.local(path)
        temporary = self._temporary()
        try:
            self._write_new(temporary, data, durable=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(temporary, target)
        except FileExistsError:
            return False
        except OSError as error:
            raise self._translate(error) from error
        finally:
            temporary.unlink(missing_ok=True)
        sync(target.parent)
        return True

    def write(self, path: str, data: bytes, durable: bool = True) -> None:
        target = self.local(path)
        temporary = self._temporary()
        try:
            self._write_new(temporary, data, durable)
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.replace(target)
        except OSError as error:
            raise self._translate(error) from error
        finally:
            temporary.unlink(missing_ok=True)
        if durable:
            sync(target.parent)

    def read(self, path: str) -> bytes | None:
        try:
            return self.local(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def chunks(self, path: str) -> Iterator[bytes]:
        with self.local(path).open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk

    def put(self, source: Path, path: str) -> tuple[int, str]:
        target = self.local(path)
        digest, size = hashlib.sha256(), 0
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with source.open("rb") as reader, target.open("wb") as writer:
                while chunk := reader.read(CHUNK_BYTES):
                    digest.update(chunk)
                    size += writer.write(chunk)
                writer.flush()
                os.fsync(writer.fileno())
        except OSError as error:
            raise self._translate(error) from error
        return size, digest.hexdigest()

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self.local(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def walk(self, path: str) -> dict[str, int]:
        top = self.local(path)
        found: dict[str, int] = {}
        for directory, _, names in os.walk(top):
            for name in names:
                file = Path(directory, name)
                try:
                    found[file.relative_to(top).as_posix()] = file.stat().st_size
                except FileNotFoundError:  # a dangling link, or deleted while we look
                    continue
        return found

    def delete(self, path: str) -> None:
        grave = self._temporary()
        try:
            self.local(path).rename(grave)  # vanishes at once; a kill during removal leaves only rubbish in tmp/
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._translate(error) from error
        if grave.is_dir():
            shutil.rmtree(grave, ignore_errors=True)
        else:
            grave.unlink(missing_ok=True)

    def _temporary(self) -> Path:
        return self._root / "tmp" / f"{os.getpid()}-{uuid.uuid4().hex}"

    def _write_new(self, path: Path, data: bytes, durable: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as stream:
            stream.write(data)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())

    def _translate(self, error: OSError) -> Exception:
        refused = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOTSUP)
        return self._refusal(error) if error.errno in refused else error

    def _refusal(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"store {self.uri}: cannot be written ({error.strerror or error}); give a directory you may write to, "
            "for example --set store.uri=/path/to/store"
        )


def sync(path: Path) -> None:
    """Flush a file or a directory's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
