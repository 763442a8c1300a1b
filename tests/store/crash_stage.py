"""A stage in a process of its own, for the tests that kill it: `python crash_stage.py STORE SCRATCH
[OUTCOME]`.

It counts to four in sealed steps, commits the sum, and prints JSON: where it resumed, whether it made the
artifact, its digest. OUTCOME `hang` stays in the stage after the first seal until it is killed.
"""

import json
import sys
import time
from pathlib import Path

from store_helpers import FAST, KEY, spec_for

from afm_core.store import ArtifactKind, StageResult, open_store


def main(uri: str, scratch: Path, outcome: str = "") -> None:
    store = open_store(uri, scratch / "cache", FAST)
    with store.attempt(
        key=KEY, spec=spec_for(store), kind=ArtifactKind.CORPUS, sections=(), scratch=scratch
    ) as attempt:
        made = attempt.committed is None
        steps = attempt.sealed("step") if made else {}
        resumed = len(steps)
        if made:
            total = sum(int(path.read_text()) for path in steps.values())
            for number in range(resumed, 4):
                file = attempt.scratch / "step"
                file.write_text(str(number))
                attempt.seal(f"step-{number}", file)
                total += number
                if outcome == "hang":
                    (scratch / "hanging").touch()
                    time.sleep(600)
            (attempt.output / "sum.txt").write_text(str(total))
            attempt.commit(StageResult())
    report = {"resumed": resumed, "made": made, "digest": attempt.committed.digest, "uri": attempt.committed.uri}
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
