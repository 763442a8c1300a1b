"""`afm eval`: measure a model on a benchmark, or score answers that were given elsewhere."""

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from afm_cli.common import (
    config_options,
    emit,
    json_option,
    model_option,
    open_configured_store,
    open_model,
    resolve_config,
    say,
)

if TYPE_CHECKING:
    from afm_core.data import AgentTask
    from afm_core.store import ArtifactRef, Store

BENCHMARKS = {"world": "our own held-out tasks: the test split of the newest tasks artifact, or --data FILE"}


class _Benchmarks(click.Group):
    """`afm eval BENCHMARK ...` beside `afm eval score ...`: every benchmark is a subcommand."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [*BENCHMARKS, "score"]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name == "score":
            return score
        if name not in BENCHMARKS:
            near = difflib.get_close_matches(name, [*BENCHMARKS, "score"], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"no benchmark {name!r}{hint} (known: {', '.join(BENCHMARKS)})")
        return _benchmark_command(name)


@click.group(cls=_Benchmarks, name="eval")
def evaluate() -> None:
    """Evaluate a model, or score given predictions.

    \b
    Examples:
      afm eval world --model 3f9c2a10 --limit 60
      afm eval world --model ./checkpoint --data questions.jsonl -k 4
      afm eval score world --data questions.jsonl --predictions answers.jsonl

    A policy's failure (truncated, parse error, budget, timeout) is wrong; an answer that cannot be scored is left
    out of the accuracy and counted as wrong in the floor.
    """


def _benchmark_command(name: str) -> click.Command:
    @click.command(name=name, short_help=BENCHMARKS[name])
    @model_option
    @click.option("--data", type=click.Path(path_type=Path), help="Tasks as JSONL or parquet instead.")
    @click.option("--limit", type=click.IntRange(min=1), help="At most so many tasks, hops in proportion.")
    @click.option("-k", "samples", type=click.IntRange(min=1), default=1, show_default=True, help="Samples a task.")
    @config_options
    @json_option
    def command(as_json: bool, **options: Any) -> None:
        _show(_measure(name, **options), as_json)

    command.help = f"{BENCHMARKS[name]}.\n\nExample: afm eval {name} --model 3f9c2a10 --limit 60"
    return command


@click.command()
@click.argument("benchmark", type=click.Choice(list(BENCHMARKS)))
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Tasks as JSONL or parquet.")
@click.option("--predictions", required=True, type=click.Path(path_type=Path), help="JSONL: id or index, prediction.")
@json_option
def score(benchmark: str, data: Path, predictions: Path, as_json: bool) -> None:
    """Score given answers without a model; a task without an answer is wrong.

    Example: afm eval score world --data questions.jsonl --predictions answers.jsonl
    """
    from afm_core.evaluation.given import read_predictions, read_tasks, score_predictions

    tasks = read_tasks(data)
    _show(score_predictions(benchmark, tasks, read_predictions(predictions, tasks)), as_json)


def _measure(
    benchmark: str,
    model: str,
    data: Path | None,
    limit: int | None,
    samples: int,
    profile: str,
    config_file: Path | None,
    overrides: tuple[str, ...],
) -> dict[str, Any]:
    """Run the episodes of a model on the benchmark's tasks, with the tools of the newest corpus."""
    import tempfile

    from afm_core.data import documents_from_table
    from afm_core.engines import open_engine
    from afm_core.evaluation.given import document_of
    from afm_core.evaluation.protocols import Protocol
    from afm_core.evaluation.runner import Runner
    from afm_core.evaluation.sampling import stratified_sample
    from afm_core.store import read_table
    from afm_core.tools import build_tools

    config = resolve_config(profile, config_file, overrides)
    evaluation = config.evaluation
    if samples > 1 and evaluation.temperature == 0:
        say("several samples a task: sampling at temperature 1 (set evaluation.temperature to choose another)")
        evaluation = evaluation.model_copy(update={"temperature": 1.0})
    store = open_configured_store(config.store.uri)
    tasks, corpus = _tasks_and_corpus(store, data)
    if limit is not None:
        tasks = stratified_sample(tasks, limit, evaluation.seed)
    directory, version = open_model(config, model)
    documents = documents_from_table(read_table(store.open(corpus).path / "documents.parquet"))
    with tempfile.TemporaryDirectory(prefix="afm-eval-") as cache:
        runner = Runner(
            build_tools(config.agent, documents, Path(cache)),
            config.agent,
            evaluation,
            config.teacher,
            lambda: open_engine(config.engine, directory, version),
        )
        try:
            say(f"{len(tasks)} tasks, {samples} sample(s) each")
            episodes = runner.episodes(Protocol.AGENT, [task for task in tasks for _ in range(samples)])
        finally:
            runner.close()
    return document_of(benchmark, tasks, episodes)


def _tasks_and_corpus(store: "Store", data: Path | None) -> "tuple[list[AgentTask], ArtifactRef]":
    """The tasks, and the corpus that the tools search: that of the newest tasks artifact, else the newest."""
    from afm_core.config import ConfigError
    from afm_core.data import Split, tasks_from_table
    from afm_core.evaluation.given import read_tasks
    from afm_core.execution.rl_inputs import task_sets
    from afm_core.store import ArtifactKind, read_table

    newest = task_sets(store)[-1:]
    corpora = [one.parents["corpus"] for one in newest if "corpus" in one.parents]
    corpora += [store.ref(one) for one in store.ls(ArtifactKind.CORPUS)[-1:]]
    if not corpora:
        raise ConfigError(f"no corpus in {store.uri} for the tools to search; run `afm run` or `afm tasks generate`")
    if data is not None:
        return read_tasks(data), corpora[0]
    if not newest:
        raise ConfigError(f"no tasks in {store.uri}; run `afm tasks generate`, or give --data FILE")
    every = tasks_from_table(read_table(store.open(store.ref(newest[0])).path / "tasks.parquet"))
    held_out = [task for task in every if task.split is Split.TEST]
    if not held_out:
        raise ConfigError(f"tasks {newest[0].digest[:12]} hold no test split: run `afm run`, or give --data FILE")
    return held_out, corpora[0]


def _show(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        emit(document)
        return
    percent: Callable[[float | None], str] = lambda value: "n/a" if value is None else f"{value:.1%}"  # noqa: E731
    low, high = document["interval"]
    click.echo(
        f"{document['benchmark']}: {percent(document['accuracy'])} of {document['scored']} scored tasks "
        f"(95% {low:.1%} to {high:.1%}); floor {percent(document['accuracy_floor'])} of {document['n']}"
    )
    if "pass_at_k" in document:
        click.echo(f"pass@{document['samples']}: {percent(document['pass_at_k'])}")
    click.echo("status: " + ", ".join(f"{name} {count}" for name, count in document["status"].items()))
