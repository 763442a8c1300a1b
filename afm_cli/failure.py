"""What `--json` prints when a run fails: one document, as for a run that succeeds."""

from collections.abc import Iterator
from contextlib import contextmanager

from afm_cli.common import emit


@contextmanager
def failure_document(run_id: str, as_json: bool) -> Iterator[None]:
    """Print the document of the run if the block fails; the error goes on to `main`, which prints its one line.

    A run that was refused before it had a record has `run_id` null and the status failed.
    """
    from afm_core.config import ConfigError, home
    from afm_core.execution import RunDirectory, run_json

    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if as_json:
            try:
                document = run_json(RunDirectory(home(), run_id).load())
            except ConfigError:
                message = " ".join(str(error).split()) or type(error).__name__
                document = {"run_id": None, "status": "failed", "stages": [], "error": message}
            emit(document)
        raise
