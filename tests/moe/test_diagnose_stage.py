"""The stage `diagnose`: what it writes, that a stopped one goes on, a page that no name can break, bad texts."""

import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from architectures import write_model

from afm_core.config import ConfigError, DiagnoseConfig
from afm_core.moe.page import colour, interval, render
from afm_core.moe.recording import DomainRouting
from afm_core.moe.selection import selection_of
from afm_core.moe.stages import diagnose
from afm_core.moe.texts import batches, read_texts
from afm_core.store import StageInterrupted, StageResult


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("moe") / "model")


class Context:
    """A stage context over plain directories."""

    def __init__(self, root: Path, model: Path, config: DiagnoseConfig) -> None:
        self.inputs = {"model": SimpleNamespace(path=model)}
        self.output = root / "output"
        shutil.rmtree(self.output, ignore_errors=True)
        self.output.mkdir()
        self.stopping = threading.Event()
        self.seals: dict[str, Path] = {}
        self.routed: list[str] = []
        self._config, self._root = config, root

    def section(self, _: Any) -> DiagnoseConfig:
        return self._config

    def seal(self, name: str, source: Path) -> None:
        self.seals[name] = self._root / name.replace("/", "-")
        shutil.copyfile(source, self.seals[name])

    def sealed(self, prefix: str = "") -> dict[str, Path]:
        return {name: path for name, path in self.seals.items() if name.startswith(prefix)}

    def progress(self, done: int, total: int, message: str = "") -> None:
        self.routed.append(message)


def config(root: Path, **fields: Any) -> DiagnoseConfig:
    """Two domains of a dozen documents each."""
    facts = root / "facts.jsonl"
    facts.write_text("".join(json.dumps({"text": f"The capital of Land {n} is Orlen {n}."}) + "\n" for n in range(12)))
    code = root / "code.jsonl"
    code.write_text(
        "".join(json.dumps({"text": f"def area_{n}(side):\n    return side * {n}"}) + "\n" for n in range(12))
    )
    values = {"domains": {"facts": str(facts), "code": str(code)}, "batch_tokens": 64, "sequence_tokens": 16}
    return DiagnoseConfig.model_validate({**values, "ngrams": (2,), **fields})


@pytest.fixture(scope="module")
def done(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Context, StageResult]:
    root = tmp_path_factory.mktemp("diagnosis")
    context = Context(root, model, config(root))
    return context, diagnose(context)  # type: ignore[arg-type]


def test_figures_selections_routing_and_page_are_written(done: tuple[Context, StageResult]) -> None:
    context, result = done
    figures = json.loads((context.output / "diagnosis.json").read_text())
    assert (figures["domains"], figures["layers"], figures["experts"], figures["top_k"]) == (
        ["code", "facts"],
        [0, 2],
        6,
        2,
    )
    assert figures["figures"]["facts"]["documents"] == 12
    assert result.metrics["facts/tokens"] == figures["figures"]["facts"]["tokens"] > 100
    assert {path.name for path in (context.output / "routing").iterdir()} == {"code.safetensors", "facts.safetensors"}
    names = {(one["domain"], one["score"]) for one in figures["selections"]}
    assert names == {
        (d, s) for d in ("code", "facts") for s in ("token", "gate", "contribution", "path", "random", "load")
    }
    chosen = selection_of(context.output, "facts", "contribution")
    assert chosen.trainable_share <= 0.25
    sizes = [len(some) for some in chosen.experts.values()]
    assert sizes == [len(some) for some in selection_of(context.output, "facts", "load").experts.values()]
    with pytest.raises(ConfigError, match=r"no selection facts-luck; it has code-contribution"):
        selection_of(context.output, "facts", "luck")
    page = (context.output / "diagnosis.html").read_text()
    assert page.count("<figure>") == 2
    assert "http" not in page.replace("http-equiv", "")


def test_a_stopped_diagnosis_goes_on_with_the_next_domain(
    done: tuple[Context, StageResult], model: Path, tmp_path: Path
) -> None:
    context = Context(tmp_path, model, config(tmp_path))

    def stop(done: int, total: int, message: str = "") -> None:
        if "facts" in message:
            context.stopping.set()

    context.progress = stop  # type: ignore[method-assign]
    with pytest.raises(StageInterrupted, match="while routing facts"):
        diagnose(context)  # type: ignore[arg-type]
    again = Context(tmp_path, model, config(tmp_path))
    again.seals = context.seals
    diagnose(again)  # type: ignore[arg-type]
    assert not any("code" in message for message in again.routed), "the sealed domain is not routed again"
    for name in ("diagnosis.json", "diagnosis.html", "routing/code.safetensors", "routing/facts.safetensors"):
        assert (again.output / name).read_bytes() == (done[0].output / name).read_bytes(), name


def test_routing_is_stored_exactly(done: tuple[Context, StageResult], tmp_path: Path) -> None:
    stored = DomainRouting.load(done[0].output / "routing" / "code.safetensors")
    stored.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (
        done[0].output / "routing" / "code.safetensors"
    ).read_bytes()
    assert stored.counts.sum() == stored.tokens.sum() * 2 * 2


def test_a_single_document_has_no_interval_and_the_page_says_so(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "prose.txt"
    text.write_text("It rained, and nobody minded. " * 8)
    settings = config(tmp_path)
    context = Context(
        tmp_path, model, settings.model_copy(update={"domains": {**settings.domains, "prose": str(text)}})
    )
    diagnose(context)  # type: ignore[arg-type]
    figures = json.loads((context.output / "diagnosis.json").read_text())
    assert figures["figures"]["prose"]["specialization"]["low"] is None
    assert "prose: one document" in (context.output / "diagnosis.html").read_text()


def test_without_domains_nothing_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--domains name=FILE"):
        diagnose(Context(tmp_path, tmp_path / "no model", DiagnoseConfig()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"body": "b"}\n', r"a.jsonl, row 2: expected an object with a string 'text'"),
        ("a.jsonl", b"{", r"a.jsonl, row 1: not valid JSON"),
        ("a.txt", b"\xff\xfe\x00", r"cannot read .*a.txt as text"),
        ("a.txt", b"  \n", r"a.txt has no text in it"),
        ("a.parquet", b"no parquet", r"cannot read .*a.parquet as parquet"),
        ("a.jsonl", None, r"cannot read .*a.jsonl"),
    ],
)
def test_texts_that_cannot_be_read_are_refused(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_texts(tmp_path / name)


def test_parquet_needs_its_column(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["one", None, "two"]}), tmp_path / "a.parquet")
    assert read_texts(tmp_path / "a.parquet") == ["one", "two"]
    pq.write_table(pa.table({"body": ["one"]}), tmp_path / "b.parquet")
    with pytest.raises(ConfigError, match=r"no column 'text'; it has body"):
        read_texts(tmp_path / "b.parquet")


def test_long_documents_go_on_under_their_number_and_special_tokens_are_text(model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    found = list(batches(["word " * 30, "<|im_end|>"], tokenizer, 1000, 16, 32))
    numbers = [number for batch in found for number in batch.documents[batch.mask].tolist()]
    assert numbers == sorted(numbers)
    assert set(numbers) == {0, 1}
    ids = [one for batch in found for one in batch.ids[batch.mask].tolist()]
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") not in ids
    assert sum(int(batch.mask.sum()) for batch in batches(["word " * 30], tokenizer, 7, 16, 32)) == 7


def test_the_page_escapes_names_and_shows_missing_intervals(done: tuple[Context, StageResult]) -> None:
    figures = json.loads((done[0].output / "diagnosis.json").read_text().replace('"facts"', '"<b>facts"'))
    page = render(figures)
    assert "<b>facts" not in page
    assert "&lt;b&gt;facts" in page
    assert interval({"value": 0.5, "low": None}) == "0.500"
    assert interval({"value": None}) == "not enough text"
    assert interval({"value": 0.5, "low": 0.25, "high": 0.75}, 2) == "0.50 (0.25 to 0.75)"
    assert (colour(4.0), colour(1.0), colour(0.1)) == ("#d95f02", "#f7f7f7", "#2563b0")
