"""`afm serve`: an OpenAI-compatible endpoint whose model uses its tools inside one completion."""

from pathlib import Path

import click

from afm_cli.common import config_options, emit, json_option, model_option, resolve_config, say


@click.command()
@model_option
@click.option("--host", default="127.0.0.1", show_default=True, help="There is no authentication: keep it loopback.")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@click.option("--name", default="afm", show_default=True, help="The model's name in the API.")
@config_options
@json_option
def serve(
    model: str,
    host: str,
    port: int,
    name: str,
    profile: str,
    config_file: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Serve a model on /v1/chat/completions (streaming too), /v1/models and /health, until interrupted.

    One completion is one whole episode: `content` is the answer, `reasoning_content` the trace with the tools' results.
    With --json one document with the address is printed first.

    \b
    Example: afm serve --model champion --port 8000
    """
    import uvicorn

    from afm_cli.policy import live_policy
    from afm_core.rollout.serve import create_app

    config = resolve_config(profile, config_file, overrides)
    with live_policy(config, model) as policy:
        url = f"http://{host}:{port}/v1"
        if as_json:
            emit({"url": url, "model": name, "policy_version": policy.policy_version})
        else:
            say(f"serving {name} on {url}")
        uvicorn.run(create_app(policy, name), host=host, port=port, log_level="warning", access_log=False)
