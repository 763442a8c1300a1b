"""A real S3 server behind a line that fails: a short fault is repeated, a lasting one told, nothing is half written."""

from pathlib import Path

import pytest
from faulty_proxy import FaultyProxy, always, faulty_proxy, once_each
from store_helpers import KEY, commit

from afm_core.store import Store, StoreUnavailable, Timing, open_store

pytestmark = pytest.mark.integration
CALM = Timing(heartbeat=60.0, poll=0.05)
FILES = {"rows.txt": b"hello" * 1000, "more/rows.txt": b"world"}


@pytest.fixture
def proxy(s3_endpoint: str):
    with faulty_proxy(s3_endpoint) as started:
        yield started


@pytest.fixture
def direct(s3_environment: str, tmp_path: Path) -> Store:
    """The store without the proxy: what is really there."""
    return open_store(s3_environment, tmp_path / "direct", CALM)


@pytest.fixture
def store(direct: Store, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The same store through the proxy."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    return open_store(direct.uri, tmp_path / "cache", CALM)


def sound(store: Store) -> bool:
    return all(one.problems == () for one in store.verify())


@pytest.mark.parametrize("fault", ["error", "reset", "lost"])
def test_what_fails_once_is_repeated(store: Store, direct: Store, proxy: FaultyProxy, fault: str) -> None:
    proxy.choose = once_each(fault, "PUT")
    ref = commit(store, files=FILES)
    assert proxy.faults >= 4  # lease, two files, manifest, pointer
    proxy.choose = once_each("error", "GET")
    assert store.open(ref).path.joinpath("rows.txt").read_bytes() == FILES["rows.txt"]
    assert direct.lookup(KEY).digest == ref.digest
    assert len(direct.generations(KEY)) == 1
    assert sound(direct)


def test_a_slow_line_only_takes_longer(store: Store, direct: Store, proxy: FaultyProxy) -> None:
    proxy.choose = lambda method, path: "slow" if method == "PUT" and "manifest" in path else ""
    ref = commit(store, files=FILES)
    assert (proxy.faults, direct.lookup(KEY).digest) == (1, ref.digest)


@pytest.mark.parametrize("fault", ["error", "reset"])
@pytest.mark.parametrize("part", ["data/rows.txt", "manifest.json", "/keys/"])
def test_what_lasts_is_told_and_the_rerun_makes_the_same(
    store: Store, direct: Store, proxy: FaultyProxy, fault: str, part: str
) -> None:
    proxy.choose = always(fault, "PUT", part)
    with pytest.raises(StoreUnavailable, match=f"store {direct.uri} at {proxy.url}: does not answer"):
        commit(store, files=FILES)
    assert direct.lookup(KEY) is None
    assert sound(direct)
    proxy.choose = lambda method, path: ""
    again = commit(store, files=FILES)
    assert direct.lookup(KEY).digest == again.digest
    assert sound(direct)
    expected = commit(direct, key="b" * 64, files=FILES)
    assert again.digest == expected.digest
