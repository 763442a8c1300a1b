"""The stage `rollout` in a process of its own, for the test that kills it: `python rollout_process.py SPEC SCRATCH`."""

import sys
from pathlib import Path

from afm_core.store import ArtifactKind, StageSpec, open_store
from afm_core.teacher.team.stage import rollout

KEY = "c" * 64


def main(spec: StageSpec, scratch: Path) -> None:
    store = open_store(spec.store_uri, scratch / "cache")
    kind = ArtifactKind.TRAJECTORIES
    with store.attempt(key=KEY, spec=spec, kind=kind, sections=("team", "agent"), scratch=scratch) as attempt:
        sys.stdout.write(attempt.commit(rollout(attempt)).digest)


if __name__ == "__main__":
    main(StageSpec.model_validate_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
