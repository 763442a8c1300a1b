"""The work of `afm tasks add`: read rows, publish a version of the pool, tell the Prefect server."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afm_cli.common import emit, say

if TYPE_CHECKING:
    from afm_core.config import RunConfig
    from afm_core.store import Store
    from afm_core.taskcraft import Published


def add_tasks(source: str, pool: str, config: "RunConfig", as_json: bool) -> None:
    """Add a file to a pool and print what became of its rows; ends with exit code 1 if none of them was good.

    Raises:
        ConfigError: a file that cannot be read or holds no row, an unusable pool name, store or benchmark.
    """
    from afm_core.config import home
    from afm_core.execution import known_to, private_scratch, store_uri
    from afm_core.store import open_store
    from afm_core.taskcraft import publish_rows, read_rows, write_rejects

    store = open_store(store_uri(config), home() / "cache")
    with private_scratch(home() / "scratch") as scratch:
        path = _fetched(source, scratch)
        rows = read_rows(path)
        published = publish_rows(store, pool, rows, known_to(config, store), config.pool.shares, scratch)
        rejects = None
        if published.admission.rejected:
            rejects = home() / "tasks" / f"{path.stem}-{_digest(path)}.rejects.jsonl"
            write_rejects(published.admission.rejected, rejects)
    document = _document(pool, published, rejects)
    document["announced"] = _announced(store, pool)
    if as_json:
        emit(document)
    else:
        _show(document, published)
    if not published.admission.good:
        sys.exit(1)


def _fetched(source: str, scratch: Path) -> Path:
    """The file here; one in S3 is downloaded."""
    if not source.startswith("s3://"):
        return Path(source).expanduser()
    from afm_core.store import s3_errors, s3_file_system

    target = scratch / source.rstrip("/").rpartition("/")[2]
    target.parent.mkdir(parents=True, exist_ok=True)
    with s3_errors(source):
        s3_file_system(source).get_file(source, str(target))
    return target


def _digest(path: Path) -> str:
    from afm_core.store import hash_file

    return hash_file(path)[1][:8]


def _document(pool: str, published: "Published", rejects: Path | None) -> dict[str, Any]:
    head, admission = published.head, published.admission
    return {
        "pool": pool,
        "version": head.version if head else None,
        "digest": head.ref.digest if head else None,
        "added": len(admission.added),
        "duplicates": admission.duplicates,
        "rejected": len(admission.rejected),
        "rejects_file": str(rejects) if rejects else None,
        "splits": admission.splits,
    }


def _announced(store: "Store", pool: str) -> bool:
    """Whether every version is known to the Prefect server; if not, the next addition or poll tells it."""
    if not os.environ.get("PREFECT_API_URL"):
        return False
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    from flows.announce import announce

    try:
        announce(store, pool)
    except Exception as error:  # noqa: BLE001 - the tasks are safe; that nobody was told is said and put right later
        reason = " ".join(str(error).split()) or type(error).__name__
        say(f"the Prefect server at {os.environ['PREFECT_API_URL']} was not told ({reason}); the next poll tells it")
        return False
    return True


def _show(document: dict[str, Any], published: "Published") -> None:
    splits = ", ".join(f"{split} {count}" for split, count in document["splits"].items())
    if published.is_new:
        say(f"{document['added']} tasks added ({splits}): task pool {published.head}, {document['digest'][:12]}")
    else:
        say(f"nothing new: task pool {published.head or document['pool']} stays as it is")
    say(f"{document['duplicates']} known already, {document['rejected']} rejected")
    for reason, count in published.admission.reasons.items():
        say(f"  {count} x {reason}")
    if document["rejects_file"]:
        say(f"rejected rows with reasons: {document['rejects_file']}")
    if published.is_new and not document["announced"]:
        say(f"train for them with: afm retrain --pool {document['pool']}")
