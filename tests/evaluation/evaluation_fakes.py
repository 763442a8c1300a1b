"""A small store with a corpus, tasks and demonstrations, and an engine that follows a script instead of a model."""

import json
import re
from pathlib import Path

from afm_core.config import CorpusConfig, RunConfig, SplitCounts, TasksConfig
from afm_core.data import Split, documents_table, tasks_table, trajectories_table
from afm_core.engines import FinishReason, Generation
from afm_core.evaluation.stages import evaluate, register
from afm_core.store import ArtifactKind, StageResult, StageSpec, open_store, write_table
from afm_core.taskcraft import corpus_documents, make_tasks
from afm_core.teacher import teacher_ceiling
from afm_core.tools import build_tools

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer():
    """One token a byte, plus the chat template's special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(["<think></think><web_search></web_search><answer></answer>"] * 4, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


class ScriptedEngine:
    """Searches for the question, then answers by `book` (question -> answer, else "unknown"); counts what it did."""

    max_length = 100_000
    slots = 8

    def __init__(self, tokenizer, book, policy_version="scripted"):
        self.tokenizer = tokenizer
        self.policy_version = policy_version
        self.book = book
        self.requests = 0
        self.closed = False
        self._queue = []

    def submit(self, request):
        self._queue.append(request)
        self.requests += 1

    def step(self):
        queue, self._queue = self._queue, []
        return [self._answer(request) for request in queue]

    def pending(self):
        return len(self._queue)

    def release(self, session):
        pass

    def close(self):
        self.closed = True

    def _answer(self, request):
        seen = self.tokenizer.decode(request.prompt_ids, skip_special_tokens=False)
        question = re.findall(r"Question: (.*)", seen)[-1].removesuffix("<|im_end|>")
        if "</web_search>" in request.stop and "<observation>" not in seen.rpartition("assistant\n")[2]:
            text = f"<think>look it up</think><plan>one step</plan><web_search>{question}</web_search>"
        else:
            text = f"<think>found</think><answer>{self.book.get(question, 'unknown')}</answer>"
        ids = tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        stop = re.search(r"</\w+>$", text).group()
        return Generation(request.id, ids, (-0.5,) * len(ids), text, FinishReason.STOP, stop)


class World:
    """A store with the artifacts that the evaluation's stages read."""

    def __init__(self, root: Path, **config):
        self.store = open_store(str(root / "store"), root / "cache")
        self.scratch = root / "scratch"
        self.config = RunConfig.model_validate({"profile": "test", "corpus": {"source": "micro"}, **config})
        counts = SplitCounts(train=12, dev=4, gate=8, test=10)
        self.documents = corpus_documents(CorpusConfig(source="micro"))
        self.tasks = make_tasks(self.documents, TasksConfig(counts=counts), self.config.agent).tasks
        tools = build_tools(self.config.agent, self.documents, root / "index")
        train = [task for task in self.tasks if task.split is Split.TRAIN]
        shown = teacher_ceiling(train, tools, self.config.teacher, self.config.agent)
        self.corpus = self.put("corpus", ArtifactKind.CORPUS, {"documents": documents_table(self.documents)})
        self.tasks_ref = self.put("tasks", ArtifactKind.TASKS, {"tasks": tasks_table(self.tasks)})
        self.demonstrations = self.put("curate", ArtifactKind.TRAJECTORIES, {"trajectories": trajectories_table(shown)})
        self.tokenizer = make_tokenizer()

    def split(self, split):
        """Tasks of one split."""
        return [task for task in self.tasks if task.split is split]

    def book(self, right=lambda task: True):
        """question -> an acceptable answer, for the tasks that are to be right."""
        return {task.question: task.answers[0] for task in self.tasks if right(task)}

    def put(self, stage, kind, tables):
        """Commit tables as an artifact."""

        def write(context):
            rows = {
                f"{name}.parquet": write_table(table, context.output / f"{name}.parquet")
                for name, table in tables.items()
            }
            return StageResult(rows=rows)

        return self.run(stage, kind, write, {}, key=f"key-{stage}")

    def put_model(self, name):
        """Commit a directory that holds only a tokenizer, different for every name."""

        def write(context):
            self.tokenizer.save_pretrained(context.output)
            (context.output / "afm.json").write_text(f'{{"name": "{name}"}}')
            steps = [{"step": n, "loss": 2.0 / n} for n in range(1, 9)]
            (context.output / "losses.json").write_text(json.dumps(steps))
            return StageResult(metrics={"tokens": 7200, "supervised_tokens": 2400})

        return self.run(name, ArtifactKind.MODEL, write, {}, key=f"key-{name}")

    def run(self, stage, kind, function, inputs, *, variant="", key=None, stopping=None):
        """Run a stage function in the store; returns the reference, as afm_core.execution would."""
        spec = StageSpec(
            stage=stage, config=self.config.model_dump(mode="json"), inputs=inputs, variant=variant,
            store_uri=self.store.uri,
        )  # fmt: skip
        sections = ("agent", "engine", "evaluation", "teacher", "registry", "selection")
        key = key or f"key-{stage}-{variant}-{'-'.join(ref.digest[:8] for ref in inputs.values())}"
        with self.store.attempt(
            key=key, spec=spec, kind=kind, sections=sections, scratch=self.scratch, stopping=stopping
        ) as attempt:
            return attempt.committed or attempt.commit(function(attempt))


def run(world, variant, key=None, stopping=None, **inputs):
    """Run the stage evaluate; returns its artifact."""
    inputs = {"tasks": world.tasks_ref, "corpus": world.corpus, **inputs}
    ref = world.run("evaluate", ArtifactKind.EVALUATION, evaluate, inputs, variant=variant, key=key, stopping=stopping)
    return world.store.open(ref)


class FakeRegistry:
    """A registry in memory; `dies` names the call that kills the process before it takes effect."""

    def __init__(self):
        self.versions = {}
        self.tags = {}
        self.alias = None
        self.dies = ""

    def champion(self):
        if self.alias is None:
            return None
        fields = {"ref": self.versions[self.alias], "version": self.alias, "tags": self.tags.get(self.alias, {})}
        return type("Champion", (), fields)()

    def register(self, ref, **keywords):
        known = [version for version, one in self.versions.items() if one.digest == ref.digest]
        version = known[0] if known else str(len(self.versions) + 1)
        self.versions[version] = ref
        self.tags[version] = keywords["tags"]
        if self.dies == "register":
            raise ConnectionError("killed after registering")
        return version

    def set_champion(self, version, **_):
        if self.dies == "set_champion":
            raise ConnectionError("killed before the alias")
        self.alias = version


def sides(world, monkeypatch, challenger_right=lambda task: True, champion_right=lambda task: False):
    """Models and evaluations of a challenger and a champion that are right about these tasks."""
    refs = {}
    for name, right in (("challenger", challenger_right), ("champion", champion_right)):
        scripted = ScriptedEngine(world.tokenizer, world.book(right))
        monkeypatch.setattr("afm_core.engines.open_engine", lambda *_, one=scripted: one)
        model = world.put_model(f"{name}-{abs(hash(tuple(sorted(scripted.book))))}")
        refs[name] = model
        refs[f"{name}_evaluation"] = run(world, "policy", model=model).ref
    return refs


def decide_on(world, refs, key):
    """Run the stage register; returns its artifact and the decision."""
    ref = world.run("register", ArtifactKind.REGISTRATION, register, refs, key=key)
    artifact = world.store.open(ref)
    return artifact, json.loads((artifact.path / "decision.json").read_text())
