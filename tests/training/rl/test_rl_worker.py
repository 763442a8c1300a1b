"""The RL worker with a real (tiny) model, engine, tools and optimizer: the whole loop, twice, and killed in between."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from training_samples import CITIES, LANDS, demonstrations, documents

from afm_core.coa import grammar_for, prompt
from afm_core.config import RunConfig
from afm_core.data import AgentTask, Split, Tag, documents_table, tasks_table, trajectories_from_table
from afm_core.store import read_table, write_table
from afm_core.tokens import chat_prompt_ids, ledger_of
from afm_core.training.channel import Channel
from afm_core.training.rl.experience import read_experience
from afm_core.training.tiny import make_tiny

pytestmark = pytest.mark.integration


def config() -> RunConfig:
    rl = {
        "steps": 2,
        "prompts": 2,
        "group_size": 4,
        "threads": 1,
        "learning_rate": 1e-3,
        "format_weight": 0.5,
        "kl_coefficient": 0.001,
        "evaluate_every": 1,
        "dev_limit": 2,
        "max_tokens": 512,
        "micro_batch_tokens": 512,
    }
    agent = {"budget": {"turns": 3, "turn_tokens": 48, "total_tokens": 160}}
    engine = {"threads": 1, "slots": 8, "max_length": 512}
    return RunConfig.model_validate(
        {"profile": "test", "model": {"source": "tiny"}, "rl": rl, "agent": agent} | {"engine": engine}
    )


def tasks() -> list[AgentTask]:
    pairs = list(zip(LANDS, CITIES, strict=True))
    return [
        AgentTask.create(f"What is the capital of {land}?", (city,), split=Split.DEV if number > 5 else Split.TRAIN)
        for number, (land, city) in enumerate(pairs)
    ]


def learned(directory: Path) -> None:
    """Teach the tiny model the demonstrations by a plain loop, so that some of its episodes come to an answer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModelForCausalLM.from_pretrained(directory)
    agent = config().agent
    text = [
        prompt(one.question, grammar_for(agent.grammar), agent.prompt, tools=[Tag(tag) for tag in agent.tools])
        for one in demonstrations()
    ]
    ledgers = [
        ledger_of(one, tokenizer, chat_prompt_ids(tokenizer, words))
        for one, words in zip(demonstrations(), text, strict=True)
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(80):
        ledger = ledgers[step % len(ledgers)]
        loss = model(input_ids=torch.tensor([ledger.ids]), labels=torch.tensor([ledger.labels()])).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(directory)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("inputs")
    make_tiny(documents(), root / "policy", seed=0)
    learned(root / "policy")
    write_table(documents_table(documents()), root / "documents.parquet")
    write_table(tasks_table(tasks()), root / "tasks.parquet")
    write_table(tasks_table([one for one in tasks() if one.split is Split.TRAIN]), root / "selected.parquet")
    return root


class Training:
    """A training in its own directory."""

    def __init__(self, inputs: Path, directory: Path) -> None:
        self.inputs, self.channel = inputs, Channel(directory)
        self.channel.create()

    def run(self, kill_at: int | None = None) -> int:
        kept = sorted((self.channel.directory / "kept").glob("*"))
        names = {name: str(self.inputs / f"{name}.parquet") for name in ("tasks", "selected", "documents")}
        job = {
            "config": config().model_dump(mode="json"),
            "policy": str(self.inputs / "policy"),
            "version": "first",
            **names,
            "directory": str(self.channel.directory),
            "resume": str(kept[-1]) if kept else None,
            "provenance": {"method": "test"},
        }
        path = self.channel.directory / "job.json"
        path.write_text(json.dumps(job))
        script = Path(__file__).with_name("rl_process.py")
        command = [sys.executable, str(script), str(path), *([str(kill_at)] if kill_at else [])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stdout[-2000:] + done.stderr[-4000:]
        return done.returncode

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.channel.reader().new() if event["kind"] == kind]

    @property
    def steps(self) -> list[Path]:
        return sorted((self.channel.directory / "steps").iterdir())

    def bytes_of(self, name: str) -> dict[str, bytes]:
        folder = self.channel.directory / name
        return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.safetensors"))}


@pytest.fixture(scope="module")
def whole(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    training = Training(inputs, tmp_path_factory.mktemp("whole"))
    assert training.run() == 0
    return training


def test_the_loop_trains_on_exactly_what_the_engine_sampled(whole: Training) -> None:
    finished = whole.events("finished")[0]
    assert (finished["state"]["end"], len(finished["state"]["steps"])) == ("completed", 2)
    assert [one["step"] for one in finished["state"]["evaluations"]] == [0, 1, 2]
    for directory in whole.steps:
        saved = {one.id: one for one in trajectories_from_table(read_table(directory / "trajectories.parquet"))}
        rows = read_experience(directory)
        assert rows
        for row in rows:
            segments = saved[row.id].segments
            assert list(row.ids) == [token for segment in segments for token in segment.token_ids]
            sampled = [value for segment in segments for value in segment.logprobs or ()]
            assert [value for value, kept in zip(row.logprobs, row.mask, strict=True) if kept] == pytest.approx(sampled)


def test_the_trainer_agrees_with_the_sampler_and_every_sync_is_proved(whole: Training) -> None:
    for record in whole.events("finished")[0]["state"]["steps"]:
        assert record["probe_difference"] < 1e-3
        assert record["logprob_difference"] < 1e-3
        assert record["importance_weight"] == pytest.approx(1.0, abs=1e-3)
    versions = [
        {
            segment.policy_version
            for one in trajectories_from_table(read_table(path / "trajectories.parquet"))
            for segment in one.segments
            if segment.policy_version
        }
        for path in whole.steps
    ]
    assert all(len(version) == 1 for version in versions)
    assert versions[0] != versions[1]


def test_a_killed_and_resumed_training_is_bit_identical(whole: Training, inputs: Path, tmp_path: Path) -> None:
    training = Training(inputs, tmp_path)
    assert training.run(kill_at=1) == -signal.SIGKILL
    assert training.run() == 0
    assert training.events("finished")[0]["state"] == whole.events("finished")[0]["state"]
    assert training.bytes_of("best") == whole.bytes_of("best")
    assert training.bytes_of("kept/step-000002") == whole.bytes_of("kept/step-000002")
    for mine, theirs in zip(training.steps, whole.steps, strict=True):
        assert (mine / "experience.parquet").read_bytes() == (theirs / "experience.parquet").read_bytes()
