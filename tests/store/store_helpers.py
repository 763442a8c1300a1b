"""What the store's tests share: a spec and a tiny stage."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from afm_core.store import (
    ArtifactKind,
    ArtifactRef,
    StageAttempt,
    StageResult,
    StageSpec,
    Store,
    Timing,
)

KEY = "a" * 64
FAST = Timing(heartbeat=0.05, dead_after=15.0, poll=0.02)


def spec_for(store: Store, stage: str = "corpus", **fields: object) -> StageSpec:
    """A spec without inputs."""
    return StageSpec.model_validate({"stage": stage, "config": {}, "store_uri": store.uri, **fields})


def commit(store: Store, key: str = KEY, files: dict[str, bytes] | None = None, **fields: object) -> ArtifactRef:
    """Commit an artifact made of `files`; `fields`: kind, inputs, generation."""
    kind = fields.pop("kind", ArtifactKind.CORPUS)
    spec = spec_for(store, **fields)
    with store.attempt(key=key, spec=spec, kind=kind, sections=(), scratch=store.cache / "scratch") as attempt:
        if attempt.committed is None:
            for name, content in (files or {"rows.txt": b"hello"}).items():
                file = attempt.output / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            attempt.commit(StageResult())
        assert attempt.committed is not None
        return attempt.committed


class StageFailed(Exception):
    """What a stage of these tests fails with."""


@contextmanager
def failing(attempt: StageAttempt) -> Iterator[StageAttempt]:
    """Run the block inside an attempt that fails at its end."""
    with suppress(StageFailed), attempt as entered:
        yield entered
        raise StageFailed
