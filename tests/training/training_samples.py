"""A micro world for training tests: documents, demonstrations, a tiny model, a stage context without a store."""

import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afm_core.config import RunConfig
from afm_core.data import (
    Document,
    Origin,
    Segment,
    Status,
    Tag,
    Trajectory,
    documents_table,
    trajectories_table,
)
from afm_core.store import Artifact, ArtifactKind, ArtifactRef, Manifest, StageSpec, write_table
from afm_core.training.rows import Row

CITIES = ("Orlen", "Vasto", "Mirne", "Kalte", "Sorbo", "Tavik", "Ulmen", "Pesca")
LANDS = ("Arland", "Bervia", "Cordia", "Dunmark", "Eskia", "Fanor", "Grend", "Holm")


def documents() -> list[Document]:
    """One document a land."""
    pairs = zip(LANDS, CITIES, strict=True)
    return [Document.create(f"d{i}", land, f"The capital of {land} is {city}.") for i, (land, city) in enumerate(pairs)]


def demonstrations(count: int = 8) -> list[Trajectory]:
    """Teacher trajectories: think, plan, search, observation, think, answer."""
    rows = []
    for number in range(count):
        land, city = LANDS[number % len(LANDS)], CITIES[number % len(CITIES)]
        parts = [
            (Origin.TEACHER, Tag.THINK, "find the capital"),
            (Origin.TEACHER, Tag.PLAN, f"search {land}" + " carefully" * (number % 3)),
            (Origin.TEACHER, Tag.WEB_SEARCH, land),
            (Origin.TOOL, Tag.OBSERVATION, f"{land}: The capital of {land} is {city}."),
            (Origin.TEACHER, Tag.THINK, "found"),
            (Origin.TEACHER, Tag.ANSWER, city),
        ]
        segments = tuple(Segment(origin=origin, tag=tag, text=text) for origin, tag, text in parts)
        rows.append(
            Trajectory(
                id=f"t{number:03d}",
                task_id=f"task{number}",
                question=f"What is the capital of {land}?",
                answer=city,
                grammar="web",
                source="solution_teacher",
                segments=segments,
                status=Status.COMPLETED,
            )
        )
    return rows


def random_rows(count: int, vocabulary: int = 50, seed: int = 0, longest: int = 40) -> list[Row]:
    """Rows of random ids; about 40% learned, the first token never."""
    import random

    generator = random.Random(seed)
    rows = []
    for number in range(count):
        length = generator.randint(4, longest)
        mask = (0, *(int(generator.random() < 0.4) for _ in range(length - 2)), 1)
        rows.append(Row(str(number), tuple(generator.randrange(vocabulary) for _ in range(length)), mask))
    return rows


def small_llama(seed: int = 0, vocabulary: int = 50) -> Any:
    """Two layers, tied embeddings, grouped heads, random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config)


class FakeContext:
    """A StageContext over plain directories; seals live below `root/seals` and outlast the context."""

    def __init__(self, root: Path, stage: str, config: RunConfig, inputs: Mapping[str, Path]) -> None:
        self.spec = StageSpec(stage=stage, config=config.model_dump(mode="json"), store_uri=str(root))
        self.inputs = {name: artifact(path) for name, path in inputs.items()}
        self.output, self.scratch = root / "output", root / "scratch"
        for folder in (self.output, self.scratch):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        self.stopping = threading.Event()
        self.messages: list[str] = []
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self._config = config
        self._seals = root / "seals"

    def section(self, model: type[Any]) -> Any:
        return next(value for name in RunConfig.model_fields if isinstance(value := getattr(self._config, name), model))

    def seal(self, name: str, source: Path) -> None:
        target = self._seals / name
        temporary = target.with_name(target.name + ".part")
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(source, temporary)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)

    def sealed(self, prefix: str = "") -> dict[str, Path]:
        folder = self._seals / prefix
        if not folder.is_dir():
            return {}
        return {f"{prefix}{path.name}": path for path in sorted(folder.iterdir()) if path.suffix != ".part"}

    def unseal(self, name: str) -> None:
        shutil.rmtree(self._seals / name)

    def progress(self, done: int, total: int, message: str = "") -> None:
        self.messages.append(f"{done}/{total} {message}")

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self.metrics.append((step, dict(metrics)))


def artifact(path: Path) -> Artifact:
    """A directory as an opened artifact with a made-up digest."""
    kind = ArtifactKind.MODEL
    ref = ArtifactRef(kind=kind, digest=path.name, uri=str(path))
    manifest = Manifest(kind=kind, digest=path.name, stage="test", key="k", generation=0, epoch=1, files=())
    return Artifact(ref=ref, manifest=manifest, path=path)


def write_demonstrations(directory: Path, count: int = 8) -> Path:
    """A directory with trajectories.parquet."""
    write_table(trajectories_table(demonstrations(count)), directory / "trajectories.parquet")
    return directory


def write_corpus(directory: Path) -> Path:
    """A directory with documents.parquet."""
    write_table(documents_table(documents()), directory / "documents.parquet")
    return directory


def run_config(**sft: Any) -> RunConfig:
    """A run with the tiny model and a short SFT section."""
    section: dict[str, Any] = {"batch_trajectories": 2, "threads": 1, "checkpoint_every": 2, **sft}
    return RunConfig.model_validate({"profile": "test", "model": {"source": "tiny"}, "sft": section})
