"""`afm tasks`: generate tasks into a file, check and add the user's own, list and show them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from afm_cli.common import config_options, emit, json_option, open_configured_store, resolve_config, say, writing

if TYPE_CHECKING:
    from afm_core.data import AgentTask


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
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def add(file: Path, as_json: bool) -> None:
    """Check FILE (.jsonl or .parquet) and keep a canonical copy under $AFM_HOME/tasks.

    Every row needs `question` and `answers`; rows without `split` are dealt to train, dev, gate and test.

    \b
    Examples:
      afm tasks add mine.jsonl
      afm run --set tasks.file=.afm/tasks/mine-1a2b3c4d.parquet
    """
    import hashlib

    from afm_core.config import home
    from afm_core.taskcraft import read_user_tasks

    found = read_user_tasks(file)
    names = "\n".join(f"{task.id} {task.split}" for task in found)
    place = home() / "tasks" / f"{file.stem}-{hashlib.sha256(names.encode()).hexdigest()[:8]}.parquet"
    _write(found, place)
    splits = _by_split(found)
    if as_json:
        emit({"file": str(place), "tasks": len(found), "splits": splits})
    else:
        say(f"{len(found)} tasks ({_words(splits)}) in {place}")
        say(f"use them with: afm run --set tasks.file={place}")


@tasks.command(name="ls")
@json_option
def list_tasks(as_json: bool) -> None:
    """List the task sets: added files and artifacts of runs.

    \b
    Example: afm tasks ls --json
    """
    rows = [
        {"source": source, "place": place, "tasks": len(found), "splits": _by_split(found)}
        for source, place, found in _sources()
    ]
    if as_json:
        emit({"task_sets": rows})
    for row in () if as_json else rows:
        click.echo(f"{row['source']:9} {row['tasks']:6} tasks  {_words(row['splits'])}  {row['place']}")
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

    sources = [("file", str(file), read_user_tasks(file))] if file else _sources()
    matches = {task.id: task for _, _, found in sources for task in found if task.id.startswith(task_id)}
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


def _sources() -> "list[tuple[str, str, list[AgentTask]]]":
    """(kind of source, place, tasks) of everything known, added files first."""
    from afm_core.config import home
    from afm_core.data import tasks_from_table
    from afm_core.store import ArtifactKind, read_table

    found = [
        ("file", str(path), tasks_from_table(read_table(path))) for path in sorted((home() / "tasks").glob("*.parquet"))
    ]
    store = open_configured_store()
    for manifest in store.ls(ArtifactKind.TASKS):
        artifact = store.open(store.ref(manifest))
        found.append(("artifact", artifact.ref.uri, tasks_from_table(read_table(artifact.path / "tasks.parquet"))))
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
