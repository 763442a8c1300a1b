"""What a run cost: only what it made itself, at the prices of its configuration."""

from afm_core.config import load_config
from afm_core.execution import RunRecord, StageProgress, StageRecord, spend_of
from afm_core.execution.runs import now
from afm_core.store import ArtifactKind, ArtifactRef

REF = ArtifactRef(kind=ArtifactKind.MODEL, digest="d", uri="u")


def stage(name: str, seconds: float, cached: bool = False, **metrics: int) -> StageRecord:
    return StageRecord(name=name, cached=cached, seconds=seconds, artifact=REF, metrics=metrics)


def test_the_spend_of_a_run() -> None:
    prices = ("execution.price_per_hour=3.6", "execution.price_per_million_tokens=2")
    record = RunRecord(
        run_id="r",
        profile="smoke",
        started=now(),
        pid=1,
        config=load_config("smoke", None, prices).model_dump(mode="json"),
        stages=[
            stage("teach", 100, cached=True),
            stage("sft", 600, tokens=7_000),
            stage("rl", 300, model_tokens=1_000_000),
            stage("rollout", 0, cost=4),
            stage("evaluate:policy:rl", 50),
        ],
        progress={"evaluate:base": StageProgress(done=1, total=2, seconds=50)},
    )
    spend = spend_of(record)
    assert (spend.seconds, spend.tokens_trained, spend.tokens_sampled) == (1000, 1_007_000, 1_000_000)
    assert spend.money == 1.0 + 2.0 + 4.0


def test_a_record_of_another_version_costs_its_time() -> None:
    record = RunRecord(run_id="r", profile="smoke", started=now(), pid=1, stages=[stage("sft", 10)])
    assert (spend_of(record).seconds, spend_of(record).money) == (10, 0)
