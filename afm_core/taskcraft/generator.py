"""Verifiable tasks from the facts of a corpus, without a language model.

A task is a walk over stated facts (airport -> city -> country -> currency) or a comparison of two values, worded by
combining the wordings of its relations. Candidates come round-robin over splits, compositions and components, so that
a consumer that stops early has a balanced set. Everything follows from documents, configuration and seed.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from afm_core.config import TasksConfig
from afm_core.data import AgentTask, Difficulty, Document, Domain, Operation, SolutionStep, Split, Template
from afm_core.taskcraft.answers import accepted_answers
from afm_core.taskcraft.compositions import Chain, Comparison, Composition, compositions, held_out_names
from afm_core.taskcraft.gates import Rejection
from afm_core.taskcraft.graph import Fact, FactGraph, read_facts
from afm_core.taskcraft.relations import ENTITIES, Kind
from afm_core.taskcraft.splits import plan_splits
from afm_core.taskcraft.wording import COMPARISONS, PHRASES, QUESTIONS, sentence_case

LEAST_RATIO = 1.25
"""Of the larger to the smaller value of a comparison."""

_PAIRS_PER_SUBJECT = 4
_TRAINING = (Split.TRAIN, Split.DEV)
_MOST_OF_A_COMPONENT = 12


class WorldTaskGenerator:
    """Walks the facts that documents state (see `relations`). `tools`: the tags a task may use."""

    def __init__(self, tools: tuple[str, ...] = ("web_search", "crawl_page")) -> None:
        self._tools = tools

    def candidates(
        self, documents: Sequence[Document], config: TasksConfig, rejections: Counter[str]
    ) -> Iterator[AgentTask]:
        """See TaskGenerator.

        Raises:
            ConfigError: the documents fall into fewer components than there are splits.
        """
        graph = read_facts(documents)
        plan = plan_splits(component_sizes(graph), config.counts, config.seed)
        found = compositions(len(config.hop_weights))
        held_out = held_out_names(found, config.held_out_share, config.seed)
        streams = [
            _Stream(graph, plan, split, one, one.name in held_out, config, self._tools).tasks(rejections)
            for one in found
            for split in Split
            if not (split in _TRAINING and one.name in held_out)
        ]
        for row in zip_longest(*streams):
            yield from (task for task in row if task is not None)


def component_sizes(graph: FactGraph) -> dict[str, int]:
    """Usable entities of every component that has any, at most a dozen counted: variety counts, not size."""
    sizes = Counter(node.component for node in graph.nodes.values() if node.eligible)
    return {component: min(count, _MOST_OF_A_COMPONENT) for component, count in sizes.items()}


class _Stream:
    """Candidates of one composition for one split."""

    def __init__(
        self,
        graph: FactGraph,
        plan: dict[str, Split],
        split: Split,
        composition: Composition,
        held_out: bool,
        config: TasksConfig,
        tools: tuple[str, ...],
    ) -> None:
        self._graph = graph
        self._plan = plan
        self._split = split
        self._composition = composition
        self._held_out = held_out
        self._rewords = config.held_out_share > 0 and split not in _TRAINING and not held_out
        self._random = random.Random(f"{config.seed} {split} {composition.name}")
        self._tools = tools

    def tasks(self, rejections: Counter[str]) -> Iterator[AgentTask]:
        """Candidates; in gate and test every second one of a trained composition has a held-out wording."""
        composition = self._composition
        makers = (
            self._comparisons(composition, rejections)
            if isinstance(composition, Comparison)
            else self._chains(composition, rejections)
        )
        for number, (facts, operation) in enumerate(makers):
            yield self._task(facts, operation, reworded=self._rewords and number % 2 == 1)

    def _subjects(self, kind: Kind) -> list[str]:
        """Subjects of this split, dealt evenly over components."""
        by_component: dict[str, list[str]] = {}
        for component, subject in self._graph.subjects(kind):
            if self._plan.get(component) is self._split:
                by_component.setdefault(component, []).append(subject)
        hands = list(by_component.values())
        for hand in hands:
            self._random.shuffle(hand)
        self._random.shuffle(hands)
        return [subject for deal in zip_longest(*hands) for subject in deal if subject is not None]

    def _chains(self, chain: Chain, rejections: Counter[str]) -> Iterator[tuple[tuple[Fact, ...], Operation | None]]:
        for subject in self._subjects(chain.relations[0].subject):
            facts = walk(self._graph, chain, subject)
            if isinstance(facts, Rejection):
                rejections[facts] += 1
            else:
                yield facts, None

    def _comparisons(
        self, comparison: Comparison, rejections: Counter[str]
    ) -> Iterator[tuple[tuple[Fact, ...], Operation | None]]:
        kind, _, name = comparison.relation.partition(".")
        subjects = [
            (Kind(kind), subject)
            for subject in self._subjects(Kind(kind))
            if self._graph.facts[Kind(kind), subject].get(name) and self._graph.facts[Kind(kind), subject][name].value
        ]
        for index, first in enumerate(subjects):
            others = subjects[:index] + subjects[index + 1 :]
            for second in self._random.sample(others, min(_PAIRS_PER_SUBJECT, len(others))):
                facts = (self._graph.facts[first][name], self._graph.facts[second][name])
                low, high = sorted(int(fact.value) for fact in facts)
                if low <= 0 or high < LEAST_RATIO * low:
                    rejections[Rejection.TOO_CLOSE] += 1
                else:
                    yield facts, comparison.operation

    def _task(self, facts: tuple[Fact, ...], operation: Operation | None, reworded: bool) -> AgentTask:
        if operation is None:
            question, paraphrase = self._word_chain(facts, reworded)
            steps = chain_steps(facts)
            answers = accepted_answers(facts[-1].relation, facts[-1].value)
        else:
            question, paraphrase = self._word_comparison(facts, operation, reworded)
            steps = comparison_steps(facts, operation)
            answers = accepted_answers(None, steps[-1].value)
        return AgentTask.create(
            question,
            answers,
            domain=Domain.WEB,
            tools=self._tools,
            difficulty=Difficulty(hops=self._composition.hops, width=1 if operation is None else 2),
            solution=steps,
            evidence=tuple(fact.evidence for fact in facts),
            component=facts[0].component,
            template=Template(
                composition=self._composition.name,
                paraphrase=paraphrase,
                held_out=self._held_out or reworded,
            ),
            split=self._split,
        )

    def _word_chain(self, facts: tuple[Fact, ...], reworded: bool) -> tuple[str, str]:
        """Question and paraphrase id, which lists the number of every relation's wording from the last to the first."""
        tables = [PHRASES[fact.relation.key] for fact in facts[:-1]] + [QUESTIONS[facts[-1].relation.key]]
        rare = self._random.randrange(len(tables)) if reworded else None
        numbers = [
            len(table) - 1 if index == rare else self._random.randrange(len(table) - 1)
            for index, table in enumerate(tables)
        ]
        text = facts[0].subject
        for table, number in zip(tables, numbers, strict=True):
            text = table[number].format(x=text)
        names = [f"{fact.relation.name}.{number}" for fact, number in zip(facts, numbers, strict=True)]
        return sentence_case(text), "+".join(reversed(names))

    def _word_comparison(self, facts: tuple[Fact, ...], operation: Operation, reworded: bool) -> tuple[str, str]:
        table = COMPARISONS[facts[0].relation.key, operation]
        number = len(table) - 1 if reworded else self._random.randrange(len(table) - 1)
        question = table[number].format(a=facts[0].subject, b=facts[1].subject)
        return sentence_case(question), f"{operation}.{number}"


def walk(graph: FactGraph, chain: Chain, subject: str) -> tuple[Fact, ...] | Rejection:
    """The facts along `chain` from `subject`, or why there is no such path."""
    facts: list[Fact] = []
    seen = {subject}
    for relation in chain.relations:
        fact = graph.facts.get((relation.subject, subject), {}).get(relation.name)
        if fact is None or not fact.value:
            return Rejection.NO_PATH
        if relation.value in ENTITIES and not graph.usable(relation.value, fact.value):
            return Rejection.UNUSABLE_NAME
        if fact.value in seen:
            return Rejection.REVISITS
        facts.append(fact)
        seen.add(fact.value)
        subject = fact.value
    return tuple(facts)


def chain_steps(facts: Sequence[Fact]) -> tuple[SolutionStep, ...]:
    """Lookups, each but the first on the value of the one before."""
    return tuple(
        SolutionStep(
            relation=fact.relation.name,
            subject=fact.subject,
            value=fact.value,
            document_id=fact.evidence.document_id,
            inputs=(index - 1,) if index else (),
        )
        for index, fact in enumerate(facts)
    )


def comparison_steps(facts: Sequence[Fact], operation: Operation) -> tuple[SolutionStep, ...]:
    """Two independent lookups and the step that names the winner; that step has no subject of its own."""
    lookups = tuple(step.model_copy(update={"inputs": ()}) for step in chain_steps(facts))
    choose = max if operation is Operation.LARGER else min
    winner = choose(lookups, key=lambda step: int(step.value))
    last = SolutionStep(
        operation=operation, relation=lookups[0].relation, subject="", value=winner.subject, inputs=(0, 1)
    )
    return (*lookups, last)
