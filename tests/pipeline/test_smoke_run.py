"""The smoke profile end to end: real processes, a real Prefect server, a real Ray, a real MLflow."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

STAGES = {
    "corpus",
    "tasks",
    "teach",
    "curate",
    "base",
    "sft",
    "select",
    "rl",
    "evaluate:policy",
    "evaluate:policy:rl",
    "evaluate:base",
    "evaluate:reference",
    "register",
}


SETTINGS = ("sft.epochs=2", "rl.overlong_buffer=512")
"""Short: the model hardly learns, and it is the episodes' lengths that give RL a signal."""


def _afm(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {"AFM_HOME": str(home), "OMP_NUM_THREADS": "2"}
    return subprocess.run(
        [sys.executable, "-m", "afm_cli.main", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )


def _run(home: Path, *arguments: str, command: str = "run") -> dict[str, Any]:
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    result = _afm(home, command, "--profile", "smoke", *settings, "--json", *arguments)
    assert result.returncode == 0, result.stderr[-4000:]
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("smoke") / "home"


@pytest.fixture(scope="module")
def first(home: Path) -> dict[str, Any]:
    return _run(home)


def _digests(document: dict[str, Any]) -> dict[str, str]:
    return {stage["name"]: stage["artifact"]["digest"] for stage in document["stages"]}


def test_the_first_run_makes_everything_and_says_so(first: dict[str, Any], home: Path) -> None:
    assert first["status"] == "completed"
    assert {stage["name"] for stage in first["stages"]} == STAGES
    assert not any(stage["cached"] for stage in first["stages"])
    assert set(first["models"]) == {"base", "sft", "rl"}
    low, high = first["models"]["sft"]["interval"]
    assert 0 <= low <= first["models"]["sft"]["accuracy"] <= high <= 1
    assert first["models"]["sft"]["n"] == 24
    assert "<html" in Path(first["report"]).read_text()
    listed = json.loads(_afm(home, "runs", "ls", "--json").stdout)
    assert [(run["run_id"], run["status"]) for run in listed] == [(first["run_id"], "completed")]


def test_curation_accounts_for_every_trajectory(first: dict[str, Any]) -> None:
    metrics = next(stage["metrics"] for stage in first["stages"] if stage["name"] == "curate")
    rejected = sum(value for name, value in metrics.items() if name.startswith("rejected/"))
    assert metrics["in"] == metrics["kept"] + rejected > 0


def test_the_model_leads_back_to_the_documents(first: dict[str, Any], home: Path) -> None:
    digest = _digests(first)["rl"]
    lineage = json.loads(_afm(home, "artifacts", "lineage", digest, "--json").stdout)

    def kinds(node: dict[str, Any]) -> set[str]:
        return {node["artifact"]["kind"]}.union(*(kinds(parent) for parent in node["parents"].values()))

    assert kinds(lineage) == {"model", "trajectories", "tasks", "corpus"}


def test_mlflow_holds_the_loss_curve(first: dict[str, Any], home: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("afm")
    runs = client.search_runs([experiment.experiment_id], "tags.`afm.stage` = 'sft'")
    assert len(runs) == 1
    assert runs[0].info.status == "FINISHED"
    history = client.get_metric_history(runs[0].info.run_id, "train/loss")
    losses = json.loads((_artifact_path(home, _digests(first)["sft"]) / "losses.json").read_text())
    assert [(one.step, one.value) for one in history] == [(one["step"], one["loss"]) for one in losses]


def test_every_rollout_of_rl_is_kept_and_a_replay_makes_the_same_update(first: dict[str, Any], home: Path) -> None:
    model = _artifact_path(home, _digests(first)["rl"])
    account = json.loads((model / "rl.json").read_text())
    assert (account["end"], len(account["steps"])) == ("completed", 2)
    step = model / "sidecar" / "rollouts" / "step-000001"
    shown = json.loads(_afm(home, "trajectories", "ls", str(step), "--json").stdout)
    assert len(shown) == account["steps"][0]["groups"] * 4
    sft = _digests(first)["sft"]
    command = ("rl", "--replay", str(step), "--model", sft, "--profile", "smoke", "--out", str(home / "replayed"))
    replayed = json.loads(_afm(home, *command, "--json").stdout)
    for name in ("loss", "gradient_norm", "entropy", "model_tokens"):
        assert replayed["update"][name] == pytest.approx(account["steps"][0][name], rel=1e-6), name


def test_a_second_run_is_all_cached(first: dict[str, Any], home: Path) -> None:
    second = _run(home)
    assert all(stage["cached"] for stage in second["stages"])
    assert _digests(second) == _digests(first)
    assert second["models"] == first["models"]


def test_a_flipped_byte_is_found_and_remade_while_a_refresh_makes_a_new_generation(
    first: dict[str, Any], home: Path
) -> None:
    tasks = _artifact_path(home, _digests(first)["tasks"]) / "tasks.parquet"
    content = bytearray(tasks.read_bytes())
    content[len(content) // 2] ^= 1
    tasks.chmod(0o644)
    tasks.write_bytes(content)
    verified = _afm(home, "artifacts", "verify", "--json")
    assert verified.returncode == 1
    corrupt = json.loads(verified.stdout)["corrupt"]
    assert [one["stage"] for one in corrupt] == ["tasks"]
    assert "tasks.parquet" in corrupt[0]["problems"][0]

    again = _run(home, "--refresh", "corpus")
    made = {stage["name"] for stage in again["stages"] if not stage["cached"]}
    assert made == {"corpus", "tasks"}
    assert _digests(again) == _digests(first)


def _artifact_path(home: Path, digest: str) -> Path:
    shown = json.loads(_afm(home, "artifacts", "show", digest, "--json").stdout)
    return home / "store" / "work" / shown["key"] / f"{shown['epoch']:04d}" / "data"


def _new_tasks(home: Path) -> Path:
    """Other tasks about the same world, which name no split: they follow their entities."""
    generated, undecided = home / "generated.jsonl", home / "new.jsonl"
    _afm(home, "tasks", "generate", "--profile", "smoke", "--set", "tasks.seed=1", "--output", str(generated))
    rows = [json.loads(line) for line in generated.read_text().splitlines()]
    undecided.write_text("".join(f"{json.dumps({**row, 'split': None})}\n" for row in rows[:90]))
    return undecided


def test_new_tasks_are_trained_for_without_repeating_old_work(first: dict[str, Any], home: Path) -> None:
    added = json.loads(_afm(home, "tasks", "add", str(_new_tasks(home)), "--profile", "smoke", "--json").stdout)
    assert added["splits"]["gate"] >= 6
    shorter = ("--until", "sft", "--set", "evaluation.baseline_limit=1", "--set", "evaluation.test_limit=2")
    retrained = _run(home, *shorter, command="retrain")
    stages = {stage["name"]: stage for stage in retrained["stages"]}
    assert {name for name, stage in stages.items() if stage["cached"]} == {"corpus", "tasks", "teach", "base"}
    assert stages["teach:default-v1"]["metrics"]["tasks"] == added["splits"]["train"]
    assert stages["curate"]["metrics"]["in"] == sum(
        stages[name]["metrics"]["trajectories"] for name in ("teach", "teach:default-v1")
    )
    assert retrained["pool"] == {"name": "default", "version": 1, "digest": added["digest"], "known": 0}
    decision = json.loads(
        (_artifact_path(home, stages["register"]["artifact"]["digest"]) / "decision.json").read_text()
    )
    assert (
        retrained["champion"]["outcome"] == decision["outcome"] in {"promoted", "kept_champion", "no_gain", "regressed"}
    )
    assert retrained["champion"]["reason"] == decision["reason"]
    assert decision["groups"]["new"]["challenger"]["n"] == added["splits"]["gate"]
    tags = {one.tags["afm.digest"]: one.tags for one in _registered(home)}[stages["sft"]["artifact"]["digest"]]
    assert (tags["afm.outcome"], tags["afm.pool.version"]) == (decision["outcome"], "1")
    listed = json.loads(_afm(home, "runs", "ls", "--json").stdout)[0]
    assert (listed["champion"], listed["pool"]) == (retrained["champion"], retrained["pool"])

    again = _run(home, *shorter, command="retrain")
    assert all(stage["cached"] for stage in again["stages"])
    assert (_digests(again), again["champion"]) == (_digests(retrained), retrained["champion"])


def _registered(home: Path) -> list[Any]:
    from mlflow import MlflowClient

    return list(MlflowClient(f"sqlite:///{home / 'mlflow.db'}").search_model_versions("name = 'afm'"))
