"""prefect.yaml names real flows with parameters they take, and the plan draws the same road as the flow."""

import inspect
from pathlib import Path

import pytest
import yaml

from afm_core.config import load_config
from afm_core.execution import STAGES
from afm_core.execution.plan import plan_run

ROOT = Path(__file__).parents[2]
DEPLOYMENTS = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda one: one["name"])
def test_a_deployment_names_a_flow_and_parameters_it_takes(deployment) -> None:
    from prefect.flows import load_flow_from_entrypoint

    flow = load_flow_from_entrypoint(str(ROOT / deployment["entrypoint"]))
    taken = inspect.signature(flow.fn).parameters
    assert set(deployment["parameters"]) <= set(taken)
    flow.validate_parameters(deployment["parameters"])


def test_the_plan_names_every_stage_and_knows_the_first_key() -> None:
    off_road = {"pool", "diagnose", "rollout", "sample"}
    steps = plan_run(load_config("smoke"))
    assert {step.name.partition(":")[0] for step in steps} == set(STAGES) - off_road
    assert not any(step.cached for step in steps)
    assert steps[0].name == "corpus"
    assert steps[0].key is not None
    assert steps[1].key is None
