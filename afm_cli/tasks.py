"""`afm tasks`: generate tasks into a file, add the user's own to a pool, export, list and show them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from afm_cli.common import (
    CommandT,
    config_options,
    emit,
    json_option,
    open_configured_store,
    resolve_config,
    say,
    writing,
)

if TYPE_CHECKING:
    from afm_core.data import AgentTask


def pool_option(command: CommandT) -> CommandT:
    """`--pool`: the name of a task pool."""
    return click.option("--pool", default="default", show_default=True, metavar="NAME", help="A task pool.")(command)


@click.group()
def tasks() -> None:
    """Generate, add and look at agentic tasks.

    \b
    Example: afm tasks generate --profile laptop --output tasks.jsonl
    """


@tasks.command()
@click.option("--output", type=click.Path(path_type=Path), default=Path("tasks.jsonl"), show_default=True)
@config_options
@json_option
def generate(output: Path, profile: str, config_file: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Generate the profile's tasks into a .jsonl or .parquet file, without a run.

    \b
    Example: afm tasks generate --profile laptop --set tasks.counts.test=50 --output tasks.jsonl
    """
    from afm_core.taskcraft import corpus_documents, make_tasks, task_metrics

    config = resolve_config(profile, config_file, overrides)
    selection = make_tasks(corpus_documents(config.corpus), config.tasks, config.agent)
    _write(selection.tasks, output)
    metrics = task_metrics(selection)
    if as_json:
        emit({"file": str(output), "tasks": len(selection.tasks), "metrics": metrics})
    else:
        say(f"{len(selection.tasks)} tasks in {output}")
        for name, number in metrics.items():
            say(f"  {name}: {number}")


@tasks.command()
@click.argument("file", metavar="FILE|URI")
@pool_option
@config_options
@json_option
def add(
    file: str, pool: str, profile: str, config_file: Path | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Add the tasks of FILE (JSON lines or parquet; a path or s3://...) to a task pool.

    Every row needs `question` and `answers`. Good rows make a new version of the pool. Rows that are malformed, or
    leak a held-out question of the pool, the profile's tasks or a benchmark, go to a rejects file with the reason.
    A Prefect server (PREFECT_API_URL) is told, so that a retraining starts.

    \b
    Examples:
      afm tasks add mine.jsonl
      afm tasks add s3://bucket/new.parquet --pool airports --profile laptop
      afm retrain --profile laptop
    """
    from afm_cli.pool import add_tasks

    add_tasks(file, pool, resolve_config(profile, config_file, overrides), as_json)


@tasks.command()
@click.argument("output", type=click.Path(path_type=Path))
@pool_option
@click.option("--version", type=click.IntRange(min=1), help="A version of the pool. [default: the newest]")
@json_option
def export(output: Path, pool: str, version: int | None, as_json: bool) -> None:
    """Write a task pool to OUTPUT (.jsonl or .parquet): `--set tasks.file=OUTPUT` makes it the tasks of a run.

    \b
    Example: afm tasks export mine.parquet --pool default
    """
    from afm_core.taskcraft import find_version, pool_tasks

    store = open_configured_store()
    found = find_version(store, pool, version)
    written = pool_tasks(store, found)
    _write(written, output)
    splits = _by_split(written)
    if as_json:
        emit({"file": str(output), "pool": pool, "version": found.version, "tasks": len(written), "splits": splits})
    else:
        say(f"{len(written)} tasks ({_words(splits)}) of {found} in {output}")


@tasks.command(name="ls")
@json_option
def list_tasks(as_json: bool) -> None:
    """List the task sets: pools and artifacts of runs.

    \b
    Example: afm tasks ls --json
    """
    rows: list[dict[str, Any]] = [
        {"source": source, "place": place, "digest": digest, "tasks": len(found), "splits": _by_split(found)}
        for source, place, digest, found in _sources()
    ]
    if as_json:
        emit({"task_sets": rows})
    for row in () if as_json else rows:
        click.echo(
            f"{row['source']:9} {row['digest'][:12]}  {row['tasks']:6} tasks  {_words(row['splits'])}  {row['place']}"
        )
    if not rows and not as_json:
        say("no tasks yet: afm tasks add FILE, or afm run --profile smoke")


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.option("--file", type=click.Path(path_type=Path), help="Look in this file only.")
@json_option
def show(task_id: str, file: Path | None, as_json: bool) -> None:
    """Show one task: question, answers, solution path, evidence. ID may be its beginning.

    \b
    Example: afm tasks show 1a2b3c
    """
    from afm_core.config import ConfigError
    from afm_core.taskcraft import read_user_tasks

    sources = [("file", str(file), "", read_user_tasks(file))] if file else _sources()
    matches = {task.id: task for _, _, _, found in sources for task in found if task.id.startswith(task_id)}
    if len(matches) != 1:
        known = f"{len(matches)} tasks begin so: {', '.join(sorted(matches)[:5])}" if matches else "none begins so"
        raise ConfigError(f"no single task {task_id!r}: {known}; see `afm tasks ls`")
    task = next(iter(matches.values()))
    if as_json:
        emit(task.model_dump(mode="json"))
    else:
        _print(task)


def _print(task: "AgentTask") -> None:
    click.echo(f"{task.id}  {task.split}  hops {task.difficulty.hops}  width {task.difficulty.width}")
    click.echo(f"question: {task.question}\nanswers:  {' | '.join(task.answers)}")
    for number, step in enumerate(task.solution):
        subject = step.subject or " / ".join(task.solution[one].subject for one in step.inputs)
        click.echo(f"  {number}. {step.operation} {step.relation} of {subject} = {step.value}  [{step.document_id}]")


def _sources() -> "list[tuple[str, str, str, list[AgentTask]]]":
    """(kind of source, place, digest, tasks) of everything known: the newest versions of pools first."""
    from afm_core.data import tasks_from_table
    from afm_core.store import ArtifactKind, read_table
    from afm_core.taskcraft import find_version, pool_names, pool_tasks

    store = open_configured_store()
    heads = [find_version(store, name) for name in pool_names(store)]
    found = [("pool", str(head), head.ref.digest, pool_tasks(store, head)) for head in heads]
    for manifest in store.ls(ArtifactKind.TASKS):
        if manifest.stage != "add":  # the versions of pools
            artifact = store.open(store.ref(manifest))
            content = tasks_from_table(read_table(artifact.path / "tasks.parquet"))
            found.append(("artifact", artifact.ref.uri, artifact.ref.digest, content))
    return found


def _write(found: "list[AgentTask]", place: Path) -> None:
    import json

    from afm_core.config import ConfigError
    from afm_core.data import tasks_table
    from afm_core.store import write_table

    if place.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"--output {place}: name it .jsonl or .parquet")
    with writing(place) as temporary:
        if place.suffix == ".parquet":
            write_table(tasks_table(found), temporary)
        else:
            lines = [json.dumps(task.model_dump(mode="json"), ensure_ascii=False, sort_keys=True) for task in found]
            temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _by_split(found: "list[AgentTask]") -> dict[str, int]:
    counts: dict[str, int] = {}
    for task in found:
        counts[str(task.split)] = counts.get(str(task.split), 0) + 1
    return dict(sorted(counts.items()))


def _words(splits: Any) -> str:
    return ", ".join(f"{split} {number}" for split, number in splits.items())
