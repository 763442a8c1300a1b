"""What a registered version tells of itself."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from afm_core.config import RegistryConfig
from afm_core.evaluation.gate import Side, decide
from afm_core.evaluation.promotion import promotion_tags
from afm_core.store import ArtifactKind, ArtifactRef


@pytest.mark.parametrize(("account", "step"), [(None, None), ('{"registered_step": 7}', "7")])
def test_a_model_that_rl_trained_is_registered_with_its_step(tmp_path: Path, account: str | None, step: str | None):
    if account is not None:
        (tmp_path / "rl.json").write_text(account)

    def opened(name: str) -> SimpleNamespace:
        ref = ArtifactRef(kind=ArtifactKind.MODEL, digest=name * 64, uri=name)
        return SimpleNamespace(ref=ref, manifest=SimpleNamespace(stage="rl", parents={"policy": ref}), path=tmp_path)

    names = ("challenger", "champion", "challenger_evaluation", "champion_evaluation")
    inputs = {name: opened(str(number)) for number, name in enumerate(names)}
    context = SimpleNamespace(inputs=inputs, spec=SimpleNamespace(store_uri="/store"))
    decision = decide(Side("0" * 64, {"t": True}), Side("1" * 64, {"t": False}), RegistryConfig())
    tags = promotion_tags(context, decision)
    assert tags.get("afm.rl.registered_step") == step
    assert (tags["afm.stage"], tags["afm.parent.policy"]) == ("rl", f"model:{'0' * 64}")
