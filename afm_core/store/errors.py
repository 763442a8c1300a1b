"""What can go wrong with the store, apart from a wrong configuration (ConfigError).

StoreUnavailable may be retried. ArtifactMissing and ArtifactCorrupt mean: run the stage that made it again.
"""


class StoreError(Exception):
    """Base of the store's errors."""


class StoreUnavailable(StoreError, OSError):
    """The store did not answer, or answered with a server error: an infrastructure fault, worth a retry."""


class ArtifactMissing(StoreError):
    """No such artifact in this store, or its files are gone."""


class ArtifactCorrupt(ArtifactMissing):
    """An artifact whose manifest or files are not what was committed."""


class LeaseHeld(StoreError):
    """Another live attempt works on the same key and waiting was refused."""
