"""Ray, seen from a stage: join the cluster of the environment, or start a small local one. Nothing else lives here."""

from afm_core.cluster.connection import connected, local_options, start_local

__all__ = ["connected", "local_options", "start_local"]
