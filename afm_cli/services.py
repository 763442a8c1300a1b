"""`afm up`, `afm down`, `afm status`: the servers of one machine."""

import shlex
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from afm_cli.common import emit, json_option, say

if TYPE_CHECKING:
    from afm_core.services import ServiceStatus

_NAMES = ("prefect", "worker", "mlflow", "s3", "ray")
_PORTS = {"prefect": "4200", "mlflow": "5000", "s3": "8333", "ray-dashboard": "8265", "ray": "any free one"}


def _port_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--NAME-port` for every port that may be set."""
    for name, default in reversed(_PORTS.items()):
        text = f"Default: {default}."
        command = click.option(f"--{name}-port", type=click.IntRange(1024, 65535), metavar="PORT", help=text)(command)
    return command


@click.command()
@click.option("--only", multiple=True, type=click.Choice(_NAMES), help="Start this one alone; repeatable.")
@_port_options
@click.option("--ray-cpus", type=click.IntRange(1), help="Logical CPUs of Ray. Default: as execution.ray_cpus.")
@click.option("--ray-object-store-bytes", type=click.IntRange(80_000_000), help="Default: as in execution.")
@click.option(
    "--postgres",
    metavar="URL",
    help="Keep the data of Prefect and MLflow there instead of in SQLite. Better as AFM_POSTGRES_URL: others can read "
    "a command line.",
)
@click.option("--start-seconds", type=click.FloatRange(1), help="How long a server may take to become healthy.")
@json_option
def up(only: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Start the servers of this machine, on loopback: Prefect and a worker, MLflow, S3, Ray.

    What runs healthily stays as it is, what died is started again. From then on every `afm` command with this AFM_HOME
    uses them.

    \b
    Example: afm up && afm run --profile smoke
    """
    from afm_core.config import home
    from afm_core.services import Options, ServiceName, StartFailed
    from afm_core.services import up as start

    ports = {name: given.pop(f"{name.replace('-', '_')}_port") for name in _PORTS}
    chosen = {name: value for name, value in given.items() if value is not None}
    options = Options(ports={name: port for name, port in ports.items() if port is not None}, **chosen)
    try:
        services = start(home(), options, [ServiceName(name) for name in only], say)
    except StartFailed as failure:
        for line in failure.tail:
            say(f"  {failure.name} | {line}")
        raise
    _show(services, as_json)
    if not as_json:
        _say_what_is_not_used()
    if not all(one.healthy for one in services):
        raise SystemExit(1)


@click.command()
@json_option
def down(as_json: bool) -> None:
    """Stop the servers that `afm up` started for this AFM_HOME, and nothing else; data and logs stay.

    Example: afm down
    """
    from afm_core.config import home
    from afm_core.services import down as stop

    stopped = stop(home(), say)
    if as_json:
        emit({"services": [{"name": name, "url": None, "healthy": False, "pid": None} for name in stopped]})
    else:
        say(f"stopped: {', '.join(stopped)}" if stopped else f"no servers of {home()} were running")


@click.command()
@click.option("--env", "environment", is_flag=True, help="Print `export` lines for a shell instead; they hold secrets.")
@json_option
def status(environment: bool, as_json: bool) -> None:
    """Tell which servers run, where, and whether they are healthy; exit code 1 if one is not.

    \b
    Example: afm status
    Example: eval "$(afm status --env)"
    """
    from afm_core.config import home
    from afm_core.services import status as ask

    if environment:
        _print_environment(as_json)
        return
    services = ask(home())
    _show(services, as_json)
    if not as_json:
        _say_what_is_not_used()
    if not all(one.healthy for one in services):
        raise SystemExit(1)


def _print_environment(as_json: bool) -> None:
    from afm_core.config import ConfigError, home
    from afm_core.config.environment import SERVICES_ENVIRONMENT, read_services_environment

    services = read_services_environment(home() / SERVICES_ENVIRONMENT)
    if not services:
        raise ConfigError(f"no servers of {home()} run; start them with `afm up`")
    variables = {name: value for one in services.values() for name, value in one.items()}
    if as_json:
        emit(variables)
        return
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")


def _show(services: "list[ServiceStatus]", as_json: bool) -> None:
    if as_json:
        emit({"services": [asdict(one) for one in services]})
        return
    if not services:
        say("no servers run; start them with `afm up`")
        return
    rows = [(one.name, one.state, str(one.pid), one.url, one.problem or one.title) for one in services]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _say_what_is_not_used() -> None:
    """The user's own environment wins; who wonders why reads it here."""
    import os

    from afm_core.config import home
    from afm_core.config.environment import SERVICES_ENVIRONMENT, own_choices, read_services_environment

    services = read_services_environment(home() / SERVICES_ENVIRONMENT)
    for name, variable in own_choices().items():
        if name in services and services[name].get(variable) != os.environ[variable]:
            say(f"note: `afm` does not use this {name}, because {variable} is set in your environment")
