"""The facts that a corpus states, read back from its frozen texts with the span of every value."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from afm_core.data import Document, Evidence
from afm_core.taskcraft.relations import ENTITIES, READ_BACKWARDS, Kind, Relation, stated_of
from afm_core.tools.text import fold, sentences, words

_MOST_WORDS = {Kind.COUNTRY: 3, Kind.CITY: 3, Kind.AIRPORT: 6}
_LONGEST_NAME = 40


@dataclass(frozen=True)
class Node:
    """An entity with a document. `eligible`: its name is plain and means nothing else, so that tasks may use it."""

    title: str
    kind: Kind
    component: str
    eligible: bool


@dataclass(frozen=True)
class Fact:
    """One stated fact: (start, end) is the span of `value` in the document's text."""

    relation: Relation
    subject: str
    value: str
    component: str
    evidence: Evidence


@dataclass
class FactGraph:
    """Entities by title and facts by (kind, subject), then relation name."""

    nodes: dict[tuple[Kind, str], Node] = field(default_factory=dict)
    facts: dict[tuple[Kind, str], dict[str, Fact]] = field(default_factory=lambda: defaultdict(dict))

    def subjects(self, kind: Kind) -> list[tuple[str, str]]:
        """(component, subject) of every subject of this kind that tasks may start from, sorted."""
        found = []
        for (subject_kind, subject), facts in self.facts.items():
            if subject_kind is kind and self.usable(kind, subject):
                found.append((next(iter(facts.values())).component, subject))
        return sorted(found)

    def usable(self, kind: Kind, name: str) -> bool:
        """Whether a path may pass through this subject or value."""
        if kind not in ENTITIES:
            return True
        node = self.nodes.get((kind, name))
        return node is not None and node.eligible


def read_facts(documents: Sequence[Document]) -> FactGraph:
    """Read every sentence that states a relation. A relation stated twice of one subject is dropped: not unique."""
    graph = FactGraph()
    blocked = clashing_titles(documents)
    for document in sorted(documents, key=lambda one: one.id):
        kind = kind_of(document)
        if kind is None:
            continue
        title = document.title
        eligible = title not in blocked and plain_name(title, kind)
        graph.nodes[kind, title] = Node(title, kind, document.component, eligible)
        for fact in _facts_of(document, kind):
            known = graph.facts[kind, title]
            if fact.relation.name in known:
                # Keep a marker that can never be walked, so that a third statement is dropped as well.
                known[fact.relation.name] = Fact(fact.relation, title, "", fact.component, fact.evidence)
            else:
                known[fact.relation.name] = fact
    _read_backwards(graph)
    return graph


def kind_of(document: Document) -> Kind | None:
    """The kind that a document's id names (`city-2661552`), None for other documents."""
    prefix = document.id.partition("-")[0]
    return next((kind for kind in ENTITIES if kind == prefix), None)


def plain_name(name: str, kind: Kind) -> bool:
    """Short names of plain letters: rare accents and signs cost a small model many tokens."""
    letters = name.replace(" ", "").replace("-", "").replace("'", "").replace(".", "")
    unusual = [character for character in name if ord(character) > 127]
    return (
        letters.isalpha()
        and len(name) <= _LONGEST_NAME
        and len(name.split()) <= _MOST_WORDS[kind]
        and len(unusual) <= 1
        and all(ord(character) < 256 for character in unusual)
        and (kind is not Kind.AIRPORT or name.endswith("Airport"))
    )


def clashing_titles(documents: Iterable[Document]) -> set[str]:
    """Titles that contain, or equal, a name of another component: `Jersey City` would leak the name of Jersey.

    Namesakes are blocked both; of a name inside another the longer is blocked, but a country is never blocked for a
    city's sake.
    """
    rows = [(one, kind_of(one), tuple(words(one.title.partition(" (")[0]))) for one in documents]
    owners: dict[tuple[str, ...], list[tuple[Document, Kind | None]]] = defaultdict(list)
    for document, kind, name in rows:
        owners[name].append((document, kind))
    blocked: set[str] = set()
    for document, kind, name in rows:
        for start in range(len(name)):
            for end in range(start + 1, len(name) + 1):
                for other, other_kind in owners.get(name[start:end], ()):
                    if other.component == document.component and name != name[start:end]:
                        continue
                    if other.id != document.id and not (kind is other_kind is Kind.COUNTRY):
                        blocked.add(other.title if kind is Kind.COUNTRY else document.title)
    return blocked


def _facts_of(document: Document, kind: Kind) -> Iterable[Fact]:
    for start, end in sentences(document.text):
        for relation in stated_of(kind):
            span = relation.read(document.text[start:end], document.title)
            if span is not None:
                evidence = Evidence(
                    document_id=document.id,
                    sha256=document.sha256,
                    start=start + span[0],
                    end=start + span[1],
                )
                value = document.text[evidence.start : evidence.end]
                yield Fact(relation, document.title, value, document.component, evidence)


def _read_backwards(graph: FactGraph) -> None:
    """Facts read from value to subject, where exactly one subject has the value and it is no word of a title.

    The code LOS would be sought, and found, in Los Angeles.
    """
    title_words = {word for _, title in graph.nodes for word in words(title)}
    for relation in READ_BACKWARDS:
        kind, _, name = relation.reads.partition(".")
        found: dict[str, list[Fact]] = defaultdict(list)
        for (subject_kind, _), facts in graph.facts.items():
            if subject_kind == kind and name in facts and facts[name].value:
                found[fold(facts[name].value)].append(facts[name])
        for facts_of_value in found.values():
            fact = facts_of_value[0]
            if len(facts_of_value) == 1 and not title_words & set(words(fact.value)):
                graph.facts[relation.subject, fact.value][relation.name] = _reversed(fact, relation)


def _reversed(fact: Fact, relation: Relation) -> Fact:
    # The sentence begins with its subject, so the subject's span lies where that sentence starts.
    before, _ = fact.relation.sentence.split("{value}")
    start = fact.evidence.start - len(before.format(subject=fact.subject))
    evidence = fact.evidence.model_copy(update={"start": start, "end": start + len(fact.subject)})
    return Fact(relation, fact.value, fact.subject, fact.component, evidence)
