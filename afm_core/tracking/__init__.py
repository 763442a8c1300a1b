"""MLflow, in a wrapper that can never stop a run: metrics are spooled to disk and replayed; registration may
fail.

Importing this room does not import MLflow (that takes seconds); the first replay or registry call does.
"""

from afm_core.tracking.client import TrackingError, tracking_file, tracking_uri
from afm_core.tracking.pages import RunPage, run_page
from afm_core.tracking.registry import POOL_KNOWN_TAG, POOL_TAG, POOL_VERSION_TAG, Champion, Registry
from afm_core.tracking.replay import ReplayReport, replay
from afm_core.tracking.replayer import Replayer
from afm_core.tracking.spool import MetricSpool

__all__ = [
    "POOL_KNOWN_TAG",
    "POOL_TAG",
    "POOL_VERSION_TAG",
    "Champion",
    "MetricSpool",
    "Registry",
    "ReplayReport",
    "Replayer",
    "RunPage",
    "TrackingError",
    "replay",
    "run_page",
    "tracking_file",
    "tracking_uri",
]
