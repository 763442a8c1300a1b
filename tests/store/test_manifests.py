"""Keys and digests: what they depend on and what they do not."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm_core.store import ArtifactCorrupt, ArtifactKind, ArtifactRef, FileEntry, Manifest, content_digest, stage_key
from afm_core.store.manifests import manifest_bytes, parse_manifest

PATHS = st.text("abc/", min_size=1, max_size=6).filter(lambda text: "//" not in text)
CONTENTS = st.dictionaries(PATHS, st.binary(max_size=12), min_size=1, max_size=5)


def entries(files: dict[str, bytes]) -> list[FileEntry]:
    return [
        FileEntry(path=path, size=len(data), sha256=hashlib.sha256(data).hexdigest()) for path, data in files.items()
    ]


@given(CONTENTS, st.randoms())
def test_digest_ignores_the_order_of_files(files, random):
    listed = entries(files)
    shuffled = random.sample(listed, len(listed))
    assert content_digest("model", listed) == content_digest("model", shuffled)


@given(CONTENTS, st.data())
def test_any_flipped_byte_or_renamed_file_changes_the_digest(files, data):
    path = data.draw(st.sampled_from(sorted(files)))
    before = content_digest("model", entries(files))
    content = files[path]
    if content:
        place = data.draw(st.integers(0, len(content) - 1))
        flipped = bytearray(content)
        flipped[place] ^= data.draw(st.integers(1, 255))
        assert content_digest("model", entries({**files, path: bytes(flipped)})) != before
    renamed = {f"{name}!" if name == path else name: value for name, value in files.items()}
    assert content_digest("model", entries(renamed)) != before


@given(CONTENTS)
def test_digest_depends_on_kind_and_schema_but_not_on_row_counts(files):
    listed = entries(files)
    before = content_digest("model", listed)
    assert content_digest("tasks", listed) != before
    assert content_digest("model", listed, "2") != before
    assert content_digest("model", [one.model_copy(update={"rows": 3}) for one in listed]) == before


def test_key_depends_on_every_part_and_on_inputs_by_digest_only():
    def reference(digest: str, uri: str) -> ArtifactRef:
        return ArtifactRef(kind=ArtifactKind.CORPUS, digest=digest, uri=uri)

    base = ("sft", "source", {"sft": {"seed": 0}}, {"base": reference("d1", "/a")}, "")
    key = stage_key(*base)
    assert key == stage_key("sft", "source", {"sft": {"seed": 0}}, {"base": reference("d1", "s3://other")})
    changed = [
        ("rl", *base[1:]),
        (base[0], "other", *base[2:]),
        (*base[:2], {"sft": {"seed": 1}}, *base[3:]),
        (*base[:3], {"base": reference("d2", "/a")}, ""),
        (*base[:3], {"champion": reference("d1", "/a")}, ""),
        (*base[:4], "policy"),
    ]
    assert len({key, *(stage_key(*one) for one in changed)}) == len(changed) + 1


def test_key_ignores_the_order_of_configuration_keys():
    assert stage_key("s", "x", {"a": 1, "b": 2}, {}) == stage_key("s", "x", {"b": 2, "a": 1}, {})


def make_manifest(files: dict[str, bytes]) -> Manifest:
    listed = tuple(entries(files))
    digest = content_digest(ArtifactKind.CORPUS, listed)
    return Manifest(kind=ArtifactKind.CORPUS, digest=digest, stage="s", key="k", generation=0, epoch=1, files=listed)


@given(CONTENTS)
def test_manifest_survives_writing_and_reading(files):
    manifest = make_manifest(files)
    assert parse_manifest(manifest_bytes(manifest)) == manifest


def test_manifest_with_another_files_hash_is_corrupt():
    manifest = make_manifest({"a": b"1"})
    forged = manifest.model_copy(update={"files": tuple(entries({"a": b"2"}))})
    with pytest.raises(ArtifactCorrupt, match="digest"):
        parse_manifest(manifest_bytes(forged))
    with pytest.raises(ArtifactCorrupt):
        parse_manifest(b"{}")
