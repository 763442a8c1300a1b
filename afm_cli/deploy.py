"""`afm deploy`: put the project's deployments, work pools, limits and automations on the Prefect server."""

import click

from afm_cli.common import emit, json_option


@click.command()
@click.option("--profile", help="The profile of every deployment; default: what prefect.yaml says.")
@click.option("--pool", default="local", show_default=True, help="The work pool that runs them: local or ray.")
@click.option(
    "--limit", "limits", multiple=True, metavar="NAME=N", help="Stages that take of NAME and run at once; repeatable."
)
@click.option("--no-schedules", is_flag=True, help="Deploy with every cron schedule switched off.")
@json_option
def deploy(profile: str | None, pool: str, limits: tuple[str, ...], no_schedules: bool, as_json: bool) -> None:
    """Put the deployments on the Prefect server, as often as you like.

    \b
    Examples:
      afm up && afm deploy
      afm deploy --profile smoke --no-schedules
      afm deploy --pool ray --limit gpu=8
    """
    from dataclasses import asdict

    from afm_core.config import load_config
    from flows.deployment import deploy as put

    if profile is not None:
        load_config(profile)
    deployed = put(profile, pool, _limits(limits), not no_schedules)
    if as_json:
        emit(asdict(deployed))
        return
    click.echo(f"on {deployed.url}:")
    for title, names in (
        ("work pools", deployed.pools),
        ("limits", [f"{name}={number}" for name, number in deployed.limits.items()]),
        ("deployments", deployed.deployments),
        ("automations", deployed.automations),
    ):
        click.echo(f"  {title}: {', '.join(names)}")
    click.echo(
        f"start one with: prefect deployment run {deployed.deployments[0]}; a worker of the pool {pool!r} runs it"
    )


def _limits(texts: tuple[str, ...]) -> dict[str, int]:
    from afm_core.config import ConfigError

    limits = {}
    for text in texts:
        name, _, number = text.partition("=")
        if not number.isdigit():
            raise ConfigError(f"--limit {text!r}: write NAME=N, e.g. gpu=8")
        limits[name] = int(number)
    return limits
