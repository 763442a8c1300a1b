"""The contract of a backend, over a directory and over a real S3 server."""

import threading
from pathlib import Path

import pytest

from afm_core.config import ConfigError
from afm_core.store import Store, hash_file, open_backend, open_store


def test_create_has_one_winner_and_keeps_its_bytes(store: Store):
    assert store.backend.create("a/b", b"one")
    assert not store.backend.create("a/b", b"two")
    assert store.backend.read("a/b") == b"one"


def test_racing_creates_have_exactly_one_winner(store: Store):
    barrier, won = threading.Barrier(8), []

    def race(number: int) -> None:
        barrier.wait()
        if store.backend.create("race", f"writer {number}".encode()):
            won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.backend.read("race") == f"writer {won[0]}".encode()


def test_write_replaces_and_missing_objects_are_none(store: Store):
    assert store.backend.read("x/y") is None
    store.backend.write("x/y", b"1")
    store.backend.write("x/y", b"22")
    assert store.backend.read("x/y") == b"22"
    assert store.backend.read("x") is None


def test_listing_sees_what_was_just_written_and_deleted(store: Store):
    assert store.backend.names("d") == []
    for name in ("d/b", "d/a/x", "d/a/y%2Fz"):
        store.backend.write(name, b"1")
        assert name in {f"d/{path}" for path in store.backend.walk("d")}
    assert store.backend.names("d") == ["a", "b"]
    assert store.backend.walk("d") == {"b": 1, "a/x": 1, "a/y%2Fz": 1}
    store.backend.delete("d/a")
    assert store.backend.walk("d") == {"b": 1}
    store.backend.delete("d/b")
    store.backend.delete("d/b")
    assert store.backend.walk("d") == {}


@pytest.mark.parametrize("size", [0, 1, 9 * 2**20])
def test_put_and_chunks_give_the_same_bytes(store: Store, tmp_path: Path, size: int):
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
    assert store.backend.put(source, "big") == hash_file(source)
    assert b"".join(store.backend.chunks("big")) == source.read_bytes()
    with pytest.raises(FileNotFoundError):
        next(store.backend.chunks("not there"))


@pytest.mark.parametrize("uri", ["gs://bucket/x", "", "http://server/x", "file://host/x"])
def test_other_schemes_are_refused(uri: str):
    with pytest.raises(ConfigError, match="store"):
        open_backend(uri)


def test_file_uri_and_path_are_the_same_store(tmp_path: Path):
    open_store(f"file://{tmp_path}/a%20b", tmp_path / "cache").backend.write("x", b"1")
    assert open_backend(str(tmp_path / "a b")).read("x") == b"1"


def test_store_below_a_file_is_a_configuration_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written.*store\.uri"):
        open_store(str(tmp_path / "file" / "store"), tmp_path)


def test_store_of_a_newer_format_is_refused(local_store: Store, tmp_path: Path):
    local_store.backend.write("store.json", b'{"format": 99}')
    with pytest.raises(ConfigError, match="format 99"):
        open_store(local_store.uri, tmp_path)


def test_server_that_ignores_conditions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from afm_core.store.backend import LocalBackend

    def careless(self: LocalBackend, path: str, data: bytes) -> bool:
        self.write(path, data)
        return True

    monkeypatch.setattr(LocalBackend, "create", careless)
    with pytest.raises(ConfigError, match="conditional create"):
        open_store(str(tmp_path / "store"), tmp_path)


def test_s3_without_credentials_is_refused(monkeypatch: pytest.MonkeyPatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="AWS_ACCESS_KEY_ID"):
        open_backend("s3://bucket/x")


@pytest.mark.integration
def test_unreachable_s3_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL") as caught:
        open_backend("s3://bucket/x")
    assert "\n" not in str(caught.value)


def test_missing_bucket_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    class NoBucket:
        def cat_file(self, path: str) -> bytes:
            raise FileNotFoundError(path)

        def pipe_file(self, path: str, data: bytes, mode: str) -> None:
            raise FileNotFoundError("The specified bucket does not exist")

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setattr("afm_core.store.s3.s3_file_system", lambda what: NoBucket())
    with pytest.raises(ConfigError, match="no such bucket"):
        open_store("s3://absent/x", tmp_path)


def test_create_that_was_repeated_after_a_lost_answer_has_still_won(monkeypatch: pytest.MonkeyPatch):
    class LostAnswer:
        def __init__(self) -> None:
            self.objects: dict[str, bytes] = {}

        def cat_file(self, path: str) -> bytes:
            if path not in self.objects:
                raise FileNotFoundError(path)
            return self.objects[path]

        def pipe_file(self, path: str, data: bytes, mode: str) -> None:
            self.objects.setdefault(path, data)
            raise OSError(22, "At least one of the pre-conditions you specified did not hold")

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setattr("afm_core.store.s3.s3_file_system", lambda what: LostAnswer())
    backend = open_backend("s3://bucket/x")
    assert backend.create("lease", b"mine")
    assert not backend.create("lease", b"theirs")


@pytest.mark.integration
def test_wrong_credentials_are_a_configuration_error(
    s3_environment: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(ConfigError, match="access refused"):
        open_store(s3_environment, tmp_path)
