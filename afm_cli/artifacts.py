"""`afm artifacts`: what is in the store, where it comes from, whether every byte is right, and what can go."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from afm_cli.common import emit, json_option, open_configured_store, say

if TYPE_CHECKING:
    from afm_core.config import TrackingConfig
    from afm_core.execution import RunRecord
    from afm_core.store import Store

_store_option = click.option("--store", "store_uri", default="", metavar="URI", help="Default: $AFM_HOME/store.")


@click.group()
def artifacts() -> None:
    """List, show, trace, verify and clean artifacts.

    Example: afm artifacts ls --kind model
    """


@artifacts.command("ls")
@click.option("--kind", default=None, help="Only this kind, e.g. model.")
@_store_option
@json_option
def list_all(kind: str | None, store_uri: str, as_json: bool) -> None:
    """List artifacts, oldest first.

    Example: afm artifacts ls --kind model
    """
    from afm_core.config import ConfigError
    from afm_core.store import ArtifactKind

    if kind is not None and kind not in set(ArtifactKind):
        raise ConfigError(f"no artifact kind {kind!r}; kinds are {', '.join(ArtifactKind)}")
    store = open_configured_store(store_uri)
    found = store.ls(ArtifactKind(kind) if kind else None)
    if as_json:
        emit([{**store.ref(one).model_dump(mode="json"), "stage": one.stage, "metrics": one.metrics} for one in found])
        return
    for one in found:
        size = sum(entry.size for entry in one.files)
        click.echo(f"{one.kind:<13} {one.digest[:12]}  {one.stage:<9} {_bytes(size):>10}  generation {one.generation}")
    if not found:
        say(f"no {kind or 'artifact'} in {store.uri}; `afm run` makes them")


@artifacts.command()
@click.argument("artifact")
@_store_option
@json_option
def show(artifact: str, store_uri: str, as_json: bool) -> None:
    """Show an artifact's manifest: files, figures, parents.

    Example: afm artifacts show model:1a2b3c
    """
    store = open_configured_store(store_uri)
    manifest = store.manifest(store.find(artifact))
    if as_json:
        emit(manifest.model_dump(mode="json"))
        return
    click.echo(f"{manifest.kind} {manifest.digest}\nstage {manifest.stage}, key {manifest.key[:16]}")
    for entry in manifest.files:
        rows = f", {entry.rows} rows" if entry.rows is not None else ""
        click.echo(f"  {entry.path}: {_bytes(entry.size)}{rows}")
    for name, value in manifest.metrics.items():
        click.echo(f"  {name} = {value}")
    click.echo(f"files: {store.open(store.ref(manifest)).path}")


@artifacts.command()
@click.argument("artifact")
@_store_option
@json_option
def lineage(artifact: str, store_uri: str, as_json: bool) -> None:
    """Walk from an artifact to the documents it comes from.

    Example: afm artifacts lineage model:1a2b3c
    """
    store = open_configured_store(store_uri)
    root = store.lineage(store.find(artifact))
    if as_json:
        emit(root.as_json())
        return
    _print_lineage(root, "", "", set())


@artifacts.command()
@click.argument("artifact", required=False)
@_store_option
@json_option
def verify(artifact: str | None, store_uri: str, as_json: bool) -> None:
    """Hash every file of one artifact, or of all; corrupt ones are named and quarantined (exit code 1).

    What is in quarantine already is named too; nothing reads it, so it is no failure.

    Example: afm artifacts verify
    """
    store = open_configured_store(store_uri)
    results = store.verify(store.find(artifact) if artifact else None)
    bad = [one for one in results if one.problems]
    fresh = {one.ref.uri for one in bad}
    known = [one for one in store.quarantine_list() if one.ref.uri not in fresh] if artifact is None else []
    if as_json:
        corrupt = [{"artifact": one.ref.model_dump(mode="json"), **_fields(one, "stage", "problems")} for one in bad]
        earlier = [
            {"artifact": mark.ref.model_dump(mode="json"), **_fields(mark, "stage", "generation", "reason", "replaced")}
            for mark in known
        ]
        emit({"verified": len(results), "corrupt": corrupt, "quarantined": earlier})
    for mark in known:
        state = "made anew since" if mark.replaced else "not made anew yet"
        say(f"quarantined earlier: {mark.ref.kind}:{mark.ref.digest[:12]} ({mark.stage}): {mark.reason}; {state}")
    for one in bad:
        say(f"{one.ref.kind}:{one.ref.digest[:12]} ({one.stage}): {'; '.join(one.problems)}")
    say(f"{len(results)} artifacts, {_bytes(sum(one.bytes for one in results))} hashed, {len(bad)} corrupt")
    if bad:
        say("corrupt artifacts are quarantined; `afm run` makes them anew")
        sys.exit(1)


@artifacts.command()
@click.option("--delete", is_flag=True, help="Really delete; without it nothing is touched.")
@click.option("--unfinished", is_flag=True, help="Also sealed work of stages that have no artifact yet.")
@click.option(
    "--keep-runs",
    type=click.IntRange(min=1),
    help="Also artifacts that neither the newest N runs nor a champion needs.",
)
@_store_option
@json_option
def gc(delete: bool, unfinished: bool, keep_runs: int | None, store_uri: str, as_json: bool) -> None:
    """Find (or delete) what nobody needs: dead attempts, quarantined data, temporary files.

    Example: afm artifacts gc --keep-runs 3 --delete
    """
    store = open_configured_store(store_uri)
    roots = _roots(store, keep_runs) if keep_runs is not None else None
    found = store.gc(roots, unfinished=unfinished, dry_run=not delete)
    if as_json:
        emit(
            {
                "dry_run": found.dry_run,
                "bytes": found.bytes,
                "garbage": [vars(one) for one in found.garbage],
                "live": list(found.live),
            }
        )
        return
    for one in found.garbage:
        click.echo(f"{_bytes(one.bytes):>10}  {one.path}  ({one.reason})")
    verb = "deleted" if delete else "can be deleted with --delete"
    say(f"{_bytes(found.bytes)} in {len(found.garbage)} places {verb}")


def _roots(store: "Store", keep_runs: int) -> list[Any]:
    """What the newest runs and all running ones made, the registered champion of every run's registry, and the task
    pools: they are the users' own data.
    """
    from afm_core.config import home
    from afm_core.execution import RunStatus, list_runs
    from afm_core.taskcraft import find_version, pool_names
    from afm_core.tracking import Registry, tracking_uri

    records = list_runs(home())
    kept = [one for number, one in enumerate(records) if number < keep_runs or one.status is RunStatus.RUNNING]
    roots = [stage.artifact for record in kept for stage in record.stages]
    roots += [find_version(store, pool).ref for pool in pool_names(store)]
    registries = {(tracking_uri(tracking), name) for tracking, name in _registries(records)}
    for uri, name in sorted(registries):
        champion = Registry(uri, name).champion()
        if champion is not None:
            roots.append(champion.ref)
    return roots


def _registries(records: "list[RunRecord]") -> "Iterator[tuple[TrackingConfig, str]]":
    """Where the runs registered: their records may be older than today's configuration, so defaults fill in."""
    from afm_core.config import RegistryConfig, TrackingConfig

    yield TrackingConfig(), RegistryConfig().model_name
    for record in records:
        tracking = TrackingConfig(uri=str(record.config.get("tracking", {}).get("uri", TrackingConfig().uri)))
        yield tracking, str(record.config.get("registry", {}).get("model_name", RegistryConfig().model_name))


def _fields(found: object, *names: str) -> dict[str, Any]:
    return {name: getattr(found, name) for name in names}


def _print_lineage(node: Any, role: str, indent: str, seen: set[str]) -> None:
    name = f"{node.ref.kind}:{node.ref.digest[:12]}"
    known = node.ref.digest in seen
    state = " (missing)" if node.missing else " (see above)" if known and node.parents else ""
    figures = ", ".join(f"{key} {value}" for key, value in list(node.metrics.items())[:3])
    label = f"{role} = {name}" if role else name
    click.echo(f"{indent}{label} by {node.stage}{state}  {figures}".rstrip())
    if known:
        return
    seen.add(node.ref.digest)
    for parent_role, parent in node.parents.items():
        _print_lineage(parent, parent_role, indent + "  ", seen)


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"
