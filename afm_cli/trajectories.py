"""`afm trajectories`: validate, import, export, list and show trajectories."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from afm_cli.common import emit, json_option, open_configured_store, say, writing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afm_core.data import Trajectory
    from afm_core.store import Store

_FILE = click.Path(path_type=Path, dir_okay=False)
_GRAMMARS = click.Choice(["mhqa", "web", "code", "multi_tool"])
_SHOWN_ROWS = 20
_COLORS = {"teacher": "green", "sampled": "green", "tool": "cyan"}


@click.group()
def trajectories() -> None:
    """Validate, import, export, list and show trajectories.

    Example: afm trajectories validate WebAgentSFTDataset.json --grammar web
    """


@trajectories.command()
@click.argument("source", metavar="FILE_OR_ARTIFACT")
@click.option("--grammar", type=_GRAMMARS, required=True, help="The profile of the language.")
@click.option("--store", "store_uri", default="", help="The store that an artifact is in.")
@json_option
def validate(source: str, grammar: str, store_uri: str, as_json: bool) -> None:
    """Check every trajectory of a file (a JSON list whose objects' `output` holds the trace, or our parquet), or of an
    artifact of the store by its digest.

    Invalid rows are a finding, not a failure: the exit code is 0.

    \b
    Examples:
      afm trajectories validate WebAgentSFTDataset.json --grammar web --json
      afm trajectories validate trajectories:3fa9c1d0 --grammar web
    """
    from afm_core.coa.formats import validate_file
    from afm_core.coa.profiles import grammar_for

    file, _ = _file_of(source, store_uri)
    report = validate_file(file, grammar_for(grammar))
    if as_json:
        emit(report)
        return
    invalid = [result for result in report["results"] if not result["valid"]]
    for result in invalid[:_SHOWN_ROWS]:
        for violation in result["violations"]:
            place = f"row {result['index']}, segment {violation['segment']}"
            click.echo(f"{place}: {violation['code']}: {violation['message']}")
    if len(invalid) > _SHOWN_ROWS:
        click.echo(f"... and {len(invalid) - _SHOWN_ROWS} more invalid rows (--json shows all)")
    click.echo(f"{report['valid']} of {report['rows']} trajectories are valid ({grammar})")


@trajectories.command("import")
@click.argument("file", type=_FILE)
@click.option(
    "--from",
    "source",
    type=click.Choice(["afm", "openai", "sharegpt", "oagents", "smolagents"]),
    required=True,
    help="The format of FILE.",
)
@click.option("--grammar", type=_GRAMMARS, default="web", show_default=True, help="The profile they belong to.")
@click.option("--output", "-o", type=_FILE, help="Parquet to write. [default: FILE with .trajectories.parquet]")
@json_option
def import_(file: Path, source: str, grammar: str, output: Path | None, as_json: bool) -> None:
    """Read FILE of another system and write our parquet; rows that cannot be read are dropped and counted.

    Example: afm trajectories import oagents.jsonl --from oagents -o new.parquet
    """
    from afm_core.coa.formats import ImportFormat, import_file
    from afm_core.config import GrammarName
    from afm_core.data import trajectories_table
    from afm_core.store import write_table

    imported = import_file(file, ImportFormat(source), GrammarName(grammar))
    target = output or file.with_suffix(".trajectories.parquet")
    with writing(target) as temporary:
        write_table(trajectories_table(imported.trajectories), temporary)
    asked = sum(bool(trajectory.question) for trajectory in imported.trajectories)
    valid = sum(not trajectory.violations for trajectory in imported.trajectories)
    if as_json:
        dropped = [{"row": row, "reason": reason, "message": text} for row, reason, text in imported.dropped]
        emit(
            {
                "rows": imported.rows,
                "imported": len(imported.trajectories),
                "valid": valid,
                "without_question": len(imported.trajectories) - asked,
                "dropped": imported.counts(),
                "drops": dropped,
                "output": str(target),
            }
        )
        return
    for row, reason, text in imported.dropped[:_SHOWN_ROWS]:
        say(f"row {row} dropped: {reason}: {text}")
    counts = ", ".join(f"{reason} {count}" for reason, count in imported.counts().items()) or "none"
    click.echo(f"{len(imported.trajectories)} of {imported.rows} imported, {valid} valid; dropped: {counts}")
    click.echo(f"written: {target}")


@trajectories.command()
@click.argument("source", metavar="FILE_OR_ARTIFACT")
@click.option("--to", "target", type=click.Choice(["sharegpt", "alpaca", "openai"]), required=True)
@click.option("--prompt", "style", type=click.Choice(["full", "brief"]), default="full", show_default=True)
@click.option("--output", "-o", type=_FILE, help="JSON to write. [default: FILE with .FORMAT.json]")
@click.option("--store", "store_uri", default="", help="The store that an artifact is in.")
@json_option
def export(source: str, target: str, style: str, output: Path | None, store_uri: str, as_json: bool) -> None:
    """Write trajectories (our parquet, or an artifact of the store by its digest) for another system.

    Example: afm trajectories export trajectories.parquet --to alpaca -o sft.json
    """
    from afm_core.coa.formats import ExportFormat, export_rows, read_trajectories
    from afm_core.config import PromptStyle

    file, named = _file_of(source, store_uri)
    rows = export_rows(read_trajectories(file), ExportFormat(target), PromptStyle(style))
    path = output or named.with_suffix(f".{target}.json")
    with writing(path) as temporary:
        temporary.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if as_json:
        emit({"rows": len(rows), "format": target, "output": str(path)})
        return
    click.echo(f"{len(rows)} trajectories written: {path}")


@trajectories.command("ls")
@click.argument("place", metavar="PLACE")
@click.option("--store", "store_uri", default="", help="The store that an artifact is in.")
@json_option
def list_all(place: str, store_uri: str, as_json: bool) -> None:
    """List the trajectories of PLACE: a file, a step directory of RL, or an artifact.

    Example: afm trajectories ls model:1a2b3c4d
    """
    from afm_cli.rollouts import listed, tables_in

    files = tables_in(place, lambda: open_configured_store(store_uri))
    rows = [row for file in files for row in listed(file)]
    if as_json:
        emit(rows)
        return
    for row in rows:
        reward = "unscored" if row["reward"] is None else f"{row['reward']:g}"
        step = Path(row["file"]).parent.name if len(files) > 1 else ""
        click.echo(f"{row['id']:<18} {row['status']:<16} {reward:>8}  {step:<12}  {row['question'][:80]}".rstrip())


@trajectories.command()
@click.argument("identity", metavar="ID")
@click.option(
    "--in",
    "--file",
    "place",
    metavar="PLACE",
    help="A file, a step directory of RL, or an artifact. [default: the whole store, demonstrations first]",
)
@click.option("--store", "store_uri", default="", help="The store to look in.")
@json_option
def show(identity: str, place: str | None, store_uri: str, as_json: bool) -> None:
    """Show the trajectory whose id (or its task's) starts with ID, element by element, and its tokens' figures.

    \b
    Examples:
      afm trajectories show 3fa9c1
      afm trajectories show 3fa9c1 --in trajectories.parquet
      afm trajectories show 3fa9c1 --in model:1a2b3c4d
    """
    from afm_cli.rollouts import token_figures
    from afm_core.coa.formats import show as described

    trajectory, file = _find(identity, place, store_uri)
    document = {**described(trajectory), "file": str(file), "tokens": token_figures(trajectory, file)}
    if as_json:
        emit(document)
        return
    click.echo(f"{document['id']}  task {document['task_id']}  {document['status']}  from {document['source']}")
    click.echo(f"Question: {document['question']}")
    for element in document["elements"]:
        mark = " (mistake)" if element["mistake"] else ""
        tag = click.style(f"[{element['segment']}] {element['tag']}{mark}", fg=_COLORS.get(element["origin"]))
        click.echo(f"{tag}: {element['text'].strip()}")
    for violation in document["violations"]:
        click.echo(f"violation, segment {violation['segment']}: {violation['code']}: {violation['message']}")
    reward = "unscored" if trajectory.reward is None else f"{trajectory.reward:g}"
    click.echo(f"answer: {trajectory.answer if trajectory.answer is not None else 'none'}; reward: {reward}")
    for line in _token_lines(document["tokens"]):
        click.echo(line)


def _token_lines(tokens: dict[str, Any]) -> "Iterator[str]":
    """The figures of `token_figures` in words."""
    if not tokens["sampled"]:
        return
    versions = ", ".join(f"{version[:12]} ({count})" for version, count in tokens["policy_versions"].items())
    yield f"tokens: {tokens['sampled']} sampled of {tokens['total']}, by policy {versions}"
    if logprobs := tokens["logprobs"]:
        yield f"log-probabilities: mean {logprobs['mean']:.3f}, lowest {logprobs['min']:.3f} nats"
    experience = tokens["experience"]
    if experience is None:
        return
    if not experience["trained"]:
        yield "training: left out (see masked in step.json)"
        return
    advantage = experience["advantage"]
    spread = advantage["max"] - advantage["min"] > 1e-9
    span = f" ({advantage['min']:+.3f} to {advantage['max']:+.3f})" if spread else ""
    yield (
        f"training: advantage {advantage['mean']:+.3f}{span} on {experience['trained_tokens']} tokens, "
        f"group {experience['group']}, staleness {experience['staleness']}"
    )


def _file_of(source: str, store_uri: str) -> tuple[Path, Path]:
    """The file of a path, or the table of an artifact named by its digest; and a path to name an output after."""
    from afm_core.store import ArtifactKind

    file = Path(source)
    if file.exists() or file.suffix or "/" in source:
        return file, file
    store = open_configured_store(store_uri)
    artifact = store.open(store.find(source, ArtifactKind.TRAJECTORIES))
    return artifact.path / "trajectories.parquet", Path(f"trajectories-{artifact.ref.digest[:12]}.parquet")


def _find(identity: str, place: str | None, store_uri: str) -> "tuple[Trajectory, Path]":
    """The one trajectory that is meant, and the file it is in."""
    from afm_cli.rollouts import matching, tables_in, tables_of_store
    from afm_core.config import ConfigError

    def store() -> "Store":
        return open_configured_store(store_uri)

    for files in [tables_in(place, store)] if place else tables_of_store(store()):
        found = {one.id: (one, file) for file in files for one in matching(identity, file)}
        if identity in found:
            return found[identity]
        if len(found) > 1:
            shown = ", ".join(sorted(found)[:5])
            raise ConfigError(f"{identity!r} means {len(found)} trajectories ({shown}, ...): give more of the id")
        if found:
            return next(iter(found.values()))
    raise ConfigError(f"no trajectory {identity!r} in {place or 'the store'}; give --in or --store")
