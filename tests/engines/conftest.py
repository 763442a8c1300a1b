"""Two random tiny models, made once a session."""

from pathlib import Path

import pytest
from tests_engines_model import make_model


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"), seed=1)


@pytest.fixture(scope="session")
def other_directory(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("other"), seed=2)
