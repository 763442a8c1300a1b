"""The stages corpus and tasks, run as the store runs them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from afm_core.config import AgentConfig, CorpusConfig, Section, TasksConfig
from afm_core.data import documents_from_table, tasks_from_table
from afm_core.store import StageContext, hash_file, read_table
from afm_core.taskcraft import build_corpus, generate_tasks


def _context(output: Path, sections: list[Section], **inputs: Path) -> StageContext:
    output.mkdir()
    fields: dict[str, Any] = {
        "output": output,
        "inputs": {name: SimpleNamespace(path=path) for name, path in inputs.items()},
        "section": lambda model: next(one for one in sections if isinstance(one, model)),
    }
    return cast(StageContext, SimpleNamespace(**fields))


def test_corpus_then_tasks_twice_gives_equal_files(tmp_path: Path, smoke: TasksConfig) -> None:
    digests = []
    for attempt in ("a", "b"):
        corpus, tasks = tmp_path / f"corpus-{attempt}", tmp_path / f"tasks-{attempt}"
        made = build_corpus(_context(corpus, [CorpusConfig(source="micro")]))
        result = generate_tasks(_context(tasks, [smoke, AgentConfig()], corpus=corpus))
        digests.append([hash_file(corpus / "documents.parquet"), hash_file(tasks / "tasks.parquet")])
        assert made.rows["documents.parquet"] == len(documents_from_table(read_table(corpus / "documents.parquet")))
        assert result.rows["tasks.parquet"] == len(tasks_from_table(read_table(tasks / "tasks.parquet"))) == 148
    assert digests[0] == digests[1]


def test_metrics_count_splits_hops_and_rejections(tmp_path: Path, smoke: TasksConfig) -> None:
    build_corpus(_context(tmp_path / "corpus", [CorpusConfig(source="micro")]))
    context = _context(tmp_path / "tasks", [smoke, AgentConfig()], corpus=tmp_path / "corpus")
    metrics = generate_tasks(context).metrics
    assert metrics["tasks"] == 148
    assert metrics["tasks/test"] == 24
    assert sum(cast(int, metrics[f"tasks/test/hops_{hop}"]) for hop in (1, 2, 3, 4)) == 24
    assert cast(int, metrics["rejected/not_needed"]) > 0
