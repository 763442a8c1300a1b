"""The Prefect server of a run: the user's own, told quickly when it is not there."""

import pytest

from flows import embedded


def test_a_server_that_the_user_named_and_that_is_not_there_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr(embedded, "_GIVEN_SECONDS", 0.1)
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:9/api: `afm status`"):
        embedded.wait_until_healthy(ours=False)
