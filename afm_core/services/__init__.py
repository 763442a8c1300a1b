"""The servers of one machine (Prefect and a worker, MLflow, S3, Ray): start, watch and stop them. Loopback only."""

from afm_core.services.catalogue import SETTABLE_PORTS, Options
from afm_core.services.starting import StartFailed
from afm_core.services.state import ServiceName, ServiceState
from afm_core.services.supervisor import ServiceStatus, down, status, up

__all__ = [
    "SETTABLE_PORTS",
    "Options",
    "ServiceName",
    "ServiceState",
    "ServiceStatus",
    "StartFailed",
    "down",
    "status",
    "up",
]
