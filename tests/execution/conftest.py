"""One real Ray head for the session, and an environment that reaches it."""

from collections.abc import Iterator

import pytest
from ray_cluster import SECRETS, TOKEN, RayHead, ray_head


@pytest.fixture(scope="session")
def head() -> Iterator[RayHead]:
    """A Ray head with a dashboard and token authentication."""
    with ray_head() as started:
        yield started


@pytest.fixture
def ray_access(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The token of the tests' clusters, and secrets that must not be told to them."""
    from ray._private.authentication_test_utils import reset_auth_token_state

    for name, value in {**SECRETS, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}.items():
        monkeypatch.setenv(name, value)
    # `ray start` of another test, or of a person: the dashboard that a test names must win over it.
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    reset_auth_token_state()
    yield
    monkeypatch.undo()
    reset_auth_token_state()
