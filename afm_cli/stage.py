"""`afm stage`: run one stage in this process. `afm run` starts it; by hand it helps to debug a stage."""

import sys

import click


@click.command()
@click.argument("spec_uri")
def stage(spec_uri: str) -> None:
    """Run the stage of a spec (a JSON file or URI) and print its events, one JSON object a line.

    Example: afm stage .afm/runs/RUN/specs/corpus.json
    """
    from afm_core.execution.worker import main

    sys.exit(main(spec_uri))
