"""`afm ask`: one question, one episode, live."""

import queue
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from afm_cli.common import config_options, emit, json_option, model_option, resolve_config

if TYPE_CHECKING:
    from afm_core.data import Trajectory
    from afm_core.rollout.live import LivePolicy, Piece


@click.command()
@click.argument("question")
@model_option
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@config_options
@json_option
def ask(
    question: str,
    model: str,
    temperature: float,
    seed: int,
    profile: str,
    config_file: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Ask a model one QUESTION and watch it think and use its tools.

    What the model writes is plain, what a tool answers is blue. The trace goes to standard error, the answer to
    standard output. Exit code 1 if there is no answer.

    \b
    Example: afm ask --model champion "What is the currency of the country that Bern is the capital of?"
    """
    from afm_cli.policy import live_policy

    if not question.strip():
        raise click.UsageError("QUESTION is empty")
    config = resolve_config(profile, config_file, overrides)
    with live_policy(config, model) as policy:
        trajectory = _watch(policy, question, temperature, seed)
    if as_json:
        emit(_document(trajectory))
    elif trajectory.answer is not None:
        click.echo(trajectory.answer)
    if trajectory.answer is None:
        reason = trajectory.provenance.get("error", "")
        click.echo(f"no answer: {trajectory.status.value}{f' ({reason})' if reason else ''}", err=True)
        sys.exit(1)


def _watch(policy: "LivePolicy", question: str, temperature: float, seed: int) -> "Trajectory":
    """Print pieces as they come; returns the finished trajectory. Control-C cancels."""
    from afm_core.data import Trajectory

    arrived: queue.Queue[Piece | Trajectory] = queue.Queue()
    ticket = policy.ask(question, arrived.put, temperature, seed)
    try:
        while True:
            piece = arrived.get()
            if isinstance(piece, Trajectory):
                click.echo("", err=True)
                return piece
            _show(piece)
    except KeyboardInterrupt:
        ticket.cancel()
        raise


def _show(piece: "Piece") -> None:
    from afm_core.data import Origin

    # A model or a page may write control characters; a terminal must not obey them.
    text = "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in piece.text)
    click.secho(text, fg="blue" if piece.origin is Origin.TOOL else None, nl=False, err=True)


def _document(trajectory: "Trajectory") -> dict[str, Any]:
    from afm_core.coa import render

    return {
        "question": trajectory.question,
        "answer": trajectory.answer,
        "status": trajectory.status.value,
        "model": trajectory.source,
        "violations": list(trajectory.violations),
        "usage": trajectory.usage.model_dump(),
        "segments": [{"origin": one.origin.value, "text": render(one)} for one in trajectory.segments],
        "error": trajectory.provenance.get("error", ""),
    }
