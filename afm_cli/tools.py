"""`afm tools`: call a tool exactly as the policy would, over the profile's documents."""

from pathlib import Path

import click

from afm_cli.common import config_options, emit, json_option, resolve_config


@click.group()
def tools() -> None:
    """Call a tool as the policy would.

    \b
    Example: afm tools call search_local --args '{"query": "Bern population"}'
    """


@tools.command()
@click.argument("name")
@click.option("--args", "arguments", required=True, metavar="JSON", help='E.g. \'{"query": "Bern population"}\'.')
@config_options
@json_option
@click.pass_context
def call(
    context: click.Context,
    name: str,
    arguments: str,
    profile: str,
    config_file: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Call the tool NAME (`search_local`, `read_local`, or a tag such as `web_search`); prints its result as JSON.

    A malformed call is answered with the status bad_arguments and exit code 2.

    \b
    Examples:
      afm tools call search_local --args '{"query": "Bern population"}'
      afm tools call read_local --args '{"title": "Tupo Airport"}' --profile smoke
    """
    from afm_core.config import home
    from afm_core.taskcraft import corpus_documents
    from afm_core.tools import ToolStatus, build_tools, call_with_json, check_tool_name

    config = resolve_config(profile, config_file, overrides)
    bound = config.agent.tools
    check_tool_name(name, bound)
    # A tool that no tag of the profile is bound to can be called as well.
    tag = name if name in bound else next((one for one, tool in bound.items() if tool == name), "web_search")
    agent = config.agent.model_copy(update={"tools": {tag: bound.get(name, name)}})
    (tool,) = build_tools(agent, corpus_documents(config.corpus), home() / "cache").values()
    result = call_with_json(tool, arguments)
    # The output is JSON with and without --json: it is what scripts read.
    emit(
        {
            "status": str(result.status),
            "text": result.text,
            "truncated": result.truncated,
            "seconds": round(result.seconds, 6),
            "cached": result.cached,
        }
    )
    codes = {ToolStatus.BAD_ARGUMENTS: 2, ToolStatus.INFRA_ERROR: 1, ToolStatus.TIMEOUT: 1}
    context.exit(codes.get(result.status, 0))
