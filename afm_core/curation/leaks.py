"""Split leaks: does a training trajectory show anything of a dev, gate or test task?

Questions are compared on the words that tell them apart (names, numbers) and only then by overlap: two
questions of one template about different entities share most words and are no leak, a paraphrase about the
same entity is one. Entities are matched word by word, longest name first, so that a training entity whose
name contains a held-out name (Santiago de Cuba, Santiago) is not taken for it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from afm_core.data import AgentTask, Operation, Split
from afm_core.tools import fold, words

NEAR = 0.5
"""Share of common words (Jaccard) from which a question with the same telling words counts as the same."""
NEAR_WITHOUT_NAMES = 0.8
"""The same for questions without any name or number."""
_CODE = re.compile(r"[A-Z0-9]{1,4}")
_NUMBER = re.compile(r"[\d.,]+")
_RAW_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class _Question:
    task_id: str
    words: frozenset[str]
    telling: frozenset[str]


@dataclass
class LeakIndex:
    """What must not be shown in training. Build with `LeakIndex.build`; then read-only and cheap to pickle.

    components: of dev, gate and test tasks. names: folded words of a name -> True if held out, False if known
    from training. codes: held-out short codes, matched with their case. questions: by their anchor word.
    """

    components: frozenset[str] = frozenset()
    names: dict[tuple[str, ...], bool] = field(default_factory=dict)
    codes: frozenset[str] = frozenset()
    questions: dict[str, list[_Question]] = field(default_factory=dict)
    longest: int = 0

    @classmethod
    def build(cls, tasks: Iterable[AgentTask]) -> "LeakIndex":
        """Index the tasks of all splits."""
        tasks = list(tasks)
        held_out = [task for task in tasks if task.split != Split.TRAIN]
        components = frozenset(task.component for task in held_out if task.component)
        train = [task for task in tasks if task.split == Split.TRAIN and task.component not in components]
        leading = _leading_relations(tasks)
        known = {name for task in train for name in (*_subjects(task), *_values(task, leading))}
        secret = {name for task in held_out for name in _subjects(task)}
        secret |= {name for task in held_out for name in _values(task, leading)} - known
        codes = frozenset(name for name in secret if _CODE.fullmatch(name) and not _NUMBER.fullmatch(name))
        names = {key: False for name in known if (key := tuple(words(name)))}
        names |= {key: True for name in secret - codes if not _NUMBER.fullmatch(name) and (key := tuple(words(name)))}
        questions: dict[str, list[_Question]] = {}
        for task in held_out:
            question = _question(task)
            questions.setdefault(_anchor(question.telling or question.words), []).append(question)
        longest = max(map(len, names), default=0)
        return cls(components, names, codes - known, questions, longest)

    def similar_question(self, question: str) -> str | None:
        """Id of a held-out task whose question is the same, or nearly so."""
        asked = frozenset(words(question))
        for word in asked:
            for other in self.questions.get(word, ()):
                overlap = len(asked & other.words) / len(asked | other.words)
                if other.telling <= asked and overlap >= (NEAR if other.telling else NEAR_WITHOUT_NAMES):
                    return other.task_id
        return None

    def named_entity(self, text: str) -> str | None:
        """The first held-out entity that the text names."""
        for code in _RAW_WORD.findall(text) if self.codes else ():
            if code in self.codes:
                return code
        found = words(text)
        position = 0
        while position < len(found):
            size = self._longest_name(found, position)
            if size and self.names[tuple(found[position : position + size])]:
                return " ".join(found[position : position + size])
            position += max(size, 1)
        return None

    def _longest_name(self, found: Sequence[str], position: int) -> int:
        most = min(self.longest, len(found) - position)
        return next((size for size in range(most, 0, -1) if tuple(found[position : position + size]) in self.names), 0)


def _subjects(task: AgentTask) -> set[str]:
    return {step.subject for step in task.solution}


def _leading_relations(tasks: Iterable[AgentTask]) -> frozenset[str]:
    """Relations whose values are entities: somewhere a path goes on from one. Continents and numbers lead nowhere."""
    return frozenset(
        task.solution[number].relation
        for task in tasks
        for step in task.solution
        for number in step.inputs
        if step.operation == Operation.LOOKUP
    )


def _values(task: AgentTask, leading: frozenset[str]) -> set[str]:
    """Entities on the solution path that are values; without a path, the answers that look like names."""
    if task.solution:
        return {step.value for step in task.solution if step.relation in leading}
    return {answer for answer in task.answers if answer.casefold() != answer or not answer[:1].isalpha()}


def _question(task: AgentTask) -> _Question:
    """Telling words: of the entities that the question names; without a solution path, its capitals and
    numbers."""
    asked = frozenset(words(task.question))
    names = {word for subject in _subjects(task) for word in words(subject)} & asked
    if not names:
        raw = task.question.split()[1:]
        names = {word for part in raw if part[:1].isupper() or part[:1].isdigit() for word in words(part)}
    return _Question(task.id, asked, frozenset(names & asked))


def _anchor(candidates: frozenset[str]) -> str:
    """One word to look a question up by: the longest, for it is rare."""
    return min(candidates, key=lambda word: (-len(word), word), default="")


def normal_text(text: str) -> str:
    """Folded text with single spaces, for exact comparison."""
    return fold(text)
