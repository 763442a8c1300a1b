"""`afm tasks`: generate, add, ls, show."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from afm_cli.tasks import tasks
from afm_core.config import ConfigError


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AFM_STORE", raising=False)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(tasks, arguments)


def _file(tmp_path: Path, *rows: object) -> str:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(path)


def _add(path: str, *options: str) -> tuple[int, dict]:
    result = _run("add", path, "--profile", "smoke", "--json", *options)
    return result.exit_code, json.loads(result.stdout)


def test_generated_tasks_can_be_written_and_are_the_profiles_own(tmp_path: Path) -> None:
    output = tmp_path / "tasks.jsonl"
    made = json.loads(_run("generate", "--profile", "smoke", "--output", str(output), "--json").stdout)
    assert made["tasks"] == made["metrics"]["tasks"] == len(output.read_text().splitlines())
    code, added = _add(str(output))
    assert (code, added["added"], added["duplicates"], added["version"]) == (0, 0, made["tasks"], None)


def test_added_tasks_make_a_version_that_is_listed_shown_and_exported(tmp_path: Path) -> None:
    rows = [{"question": f"Question {number}?", "answer": str(number)} for number in range(20)]
    code, added = _add(_file(tmp_path, *rows, {"question": "Question 3?", "answer": "3"}, {"question": "x"}, "{"))
    assert (code, added["pool"], added["version"], added["announced"]) == (0, "default", 1, False)
    assert (added["added"], added["duplicates"], added["rejected"]) == (20, 1, 2)
    rejects = [json.loads(line) for line in Path(added["rejects_file"]).read_text().splitlines()]
    assert [(one["row"], one["field"]) for one in rejects] == [(22, "answers"), (23, "")]
    assert rejects[0]["original"] == {"question": "x"}
    (listed,) = json.loads(_run("ls", "--json").stdout)["task_sets"]
    assert (listed["place"], listed["splits"]) == ("default@1", added["splits"])
    exported = tmp_path / "out.jsonl"
    assert json.loads(_run("export", str(exported), "--json").stdout)["splits"] == added["splits"]
    first = json.loads(exported.read_text().splitlines()[0])
    assert json.loads(_run("show", first["id"], "--json").stdout) == first
    assert first["question"] in _run("show", first["id"][:12]).stdout


def test_an_exported_pool_can_be_the_tasks_of_a_run(tmp_path: Path) -> None:
    from afm_core.config import load_config
    from afm_core.taskcraft import corpus_documents, make_tasks

    _add(_file(tmp_path, *({"question": f"Question {number}?", "answer": str(number)} for number in range(40))))
    _run("export", str(tmp_path / "out.parquet"))
    config = load_config("smoke", None, (f"tasks.file={tmp_path / 'out.parquet'}",))
    assert len(make_tasks(corpus_documents(config.corpus), config.tasks, config.agent).tasks) == 40


def test_adding_again_publishes_nothing_and_only_bad_rows_fail(tmp_path: Path) -> None:
    path = _file(tmp_path, {"question": "q", "answer": "a"})
    first, again = _add(path), _add(path)
    assert again == (0, {**first[1], "added": 0, "duplicates": 1, "splits": {}})
    assert "nothing new" in _run("add", path, "--profile", "smoke").stderr
    code, document = _add(_file(tmp_path, {"question": "q", "answr": "a"}))
    assert (code, document["added"], document["rejected"], document["version"]) == (1, 0, 1, 1)


def test_a_training_row_with_a_test_question_of_the_profile_is_rejected(tmp_path: Path) -> None:
    _run("generate", "--profile", "smoke", "--output", str(tmp_path / "own.jsonl"))
    own = [json.loads(line) for line in (tmp_path / "own.jsonl").read_text().splitlines()]
    test = next(row for row in own if row["split"] == "test")
    bare = {"question": test["question"].upper(), "answers": test["answers"], "split": "train"}
    code, document = _add(_file(tmp_path, bare, {"question": "Fine?", "answer": "yes"}))
    assert (code, document["added"], document["rejected"]) == (0, 1, 1)
    reject = json.loads(Path(document["rejects_file"]).read_text())
    assert reject["reason"].startswith("leak:test (")
    assert test["id"] in reject["reason"]


def test_a_benchmark_in_the_configuration_is_no_training_data(tmp_path: Path) -> None:
    (tmp_path / "sums.jsonl").write_text('{"question": "What is 2 + 2?", "answer": ["4"]}')
    setting = ("--set", f'pool.benchmarks=["{tmp_path / "sums.jsonl"}"]')
    path = _file(tmp_path, {"question": "What is 2 + 2?", "answer": "4", "split": "train"})
    code, document = _add(path, *setting)
    assert code == 1
    assert "leak:benchmark" in Path(document["rejects_file"]).read_text()
    (tmp_path / "sums.jsonl").write_text('{"prompt": "Answer: what is 2 + 2?"}')
    with pytest.raises(ConfigError, match=r"sums\.jsonl, row 1: no text in the field question or problem"):
        raise _run("add", path, "--profile", "smoke", *setting).exception


@pytest.mark.parametrize("content", ["", "\0\0", None])
def test_a_file_without_rows_is_the_users_mistake(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "mine.jsonl"
    if content is not None:
        path.write_text(content)
    error = _run("add", str(path), "--profile", "smoke").exception
    assert isinstance(error, ConfigError)
    assert "mine.jsonl" in str(error)


def test_an_unknown_id_and_a_wrong_ending_are_the_users_mistakes(tmp_path: Path) -> None:
    assert isinstance(_run("show", "zz").exception, ConfigError)
    wrong = _run("generate", "--profile", "smoke", "--output", str(tmp_path / "tasks.csv"))
    assert isinstance(wrong.exception, ConfigError)
