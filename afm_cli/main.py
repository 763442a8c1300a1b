"""Entry point of `afm`. Commands are imported when they are used, so that `afm --help` is instant.

Exit codes: 0 ok, 1 the work failed, 2 wrong usage or configuration. Errors are one line; `--debug` shows the traceback.
"""

import importlib
import os
import sys
import traceback

import click

from afm_core.config import home
from afm_core.config.environment import join_services, silence_telemetry

_COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("afm_cli.run:run", "Run the whole pipeline of a profile."),
    "retrain": ("afm_cli.retrain:retrain", "Train for the new tasks of a task pool; the gate decides."),
    "rollout": ("afm_cli.rollout:rollout", "Demonstrate tasks with a team of language models, or with a policy."),
    "rl": ("afm_cli.rl:rl", "Train a model by reinforcement learning, or on saved rollouts."),
    "tasks": ("afm_cli.tasks:tasks", "Generate, add and look at agentic tasks."),
    "eval": ("afm_cli.eval:evaluate", "Evaluate a model, or score given predictions."),
    "diagnose": ("afm_cli.diagnose:diagnose", "Tell which experts of a mixture-of-experts model a domain uses."),
    "artifacts": ("afm_cli.artifacts:artifacts", "List, show, trace, verify and clean artifacts."),
    "trajectories": ("afm_cli.trajectories:trajectories", "Validate, import, export, list and show trajectories."),
    "models": ("afm_cli.models:models", "Fetch and list models."),
    "tools": ("afm_cli.tools:tools", "Call a tool as the policy would."),
    "ask": ("afm_cli.ask:ask", "Ask a model one question, live, with its tools."),
    "serve": ("afm_cli.serve:serve", "Serve a model on an OpenAI-compatible endpoint, tools inside."),
    "runs": ("afm_cli.runs:runs", "List, compare, read, cancel and resume runs."),
    "up": ("afm_cli.services:up", "Start the servers of this machine: Prefect, MLflow, S3, Ray and a worker."),
    "down": ("afm_cli.services:down", "Stop the servers that `up` started; their data stays."),
    "status": ("afm_cli.services:status", "Tell which servers run, where, and whether they are healthy."),
    "deploy": ("afm_cli.deploy:deploy", "Put deployments, limits and automations on a Prefect server."),
    "stage": ("afm_cli.stage:stage", "Run one stage in this process (used by `run`)."),
}
_SERVICES = ("up", "down", "status")
"""They manage the servers; all other commands use them."""


class _Commands(click.Group):
    """Names and one-line helps are known without importing any command."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.version_option(package_name="chain-of-agents", prog_name="afm")
@click.pass_context
def afm(context: click.Context, debug: bool) -> None:
    """From documents to a registered agent foundation model.

    Example: afm run --profile smoke
    """
    if debug:
        os.environ["AFM_DEBUG"] = "1"
    if context.invoked_subcommand not in _SERVICES:
        join_services(home())


def main() -> None:
    """Run the command; turn the user's mistakes into one line."""
    from afm_core.config import ConfigError

    silence_telemetry()
    try:
        sys.exit(afm.main(prog_name="afm", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = f"{context.command_path} --help" if context is not None else "afm --help"
        click.echo(f"error: {' '.join(error.format_message().split()).rstrip('.')}; see `{where}`", err=True)
        sys.exit(2)
    except ConfigError as error:
        _fail(error, 2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader (`| head`) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - the last line of defence: reported with exit code 1, never swallowed
        _fail(error, 1)


def _fail(error: Exception, code: int) -> None:
    if os.environ.get("AFM_DEBUG"):
        traceback.print_exception(error)
    message = " ".join(str(error).split()) or type(error).__name__
    click.echo(f"error: {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
