"""Where a run is seen in MLflow: its id, and its page where a server has pages."""

from dataclasses import dataclass

from afm_core.config import ConfigError, TrackingConfig
from afm_core.tracking.client import TrackingError, open_client, tracking_file, tracking_uri


@dataclass(frozen=True)
class RunPage:
    """An MLflow run and the address of its page."""

    id: str
    url: str


def run_page(config: TrackingConfig, run: str) -> RunPage | None:
    """The page of a pipeline run on an MLflow server. Never raises: None without a server or such a run.

    `run` is the pipeline run's id (tag `afm.run` of the parent run).
    """
    uri = tracking_uri(config)
    if not config.enabled or tracking_file(config):
        return None
    try:
        client = open_client(uri)
        from mlflow.exceptions import MlflowException

        try:
            experiment = client.get_experiment_by_name(config.experiment)
            if experiment is None:
                return None
            wanted = "tags.`afm.run` = '{}' and tags.`afm.parent` = 'true'".format(run.replace("'", "''"))
            found = client.search_runs([experiment.experiment_id], wanted, max_results=1)
        except MlflowException:
            return None
    except (ConfigError, TrackingError):
        return None
    if not found:
        return None
    identity = str(found[0].info.run_id)
    return RunPage(identity, f"{uri.rstrip('/')}/#/experiments/{experiment.experiment_id}/runs/{identity}")
