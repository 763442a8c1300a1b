"""From entities to documents: titles made unique, components of entities that must not be split, texts rendered."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from afm_core.data import Document
from afm_core.taskcraft.relations import Kind, stated_of
from afm_core.tools.text import contains_words, fold, words


@dataclass(frozen=True)
class Entity:
    """One thing the corpus knows. `facts`: relation name -> value; an entity's value is that entity's id."""

    id: str
    kind: Kind
    name: str
    country: str
    """Id of its country (its own id for a country)."""
    facts: Mapping[str, str] = field(default_factory=dict)
    region: str = ""
    """Something to tell it from a namesake in its own country."""
    licence: str = ""


def documents_of(entities: Iterable[Entity]) -> list[Document]:
    """One document an entity, sorted by id. Facts whose value is an entity that is missing are left out."""
    known = {entity.id: entity for entity in entities}
    titles = unique_titles(known)
    components = country_components(known)
    return [
        Document.create(
            id=entity.id,
            title=titles[entity.id],
            text=_text(entity, titles),
            url=f"local://{entity.id}",
            licence=entity.licence,
            component=components[entity.country],
        )
        for entity in sorted(known.values(), key=lambda one: one.id)
    ]


def unique_titles(entities: Mapping[str, Entity]) -> dict[str, str]:
    """A title for every entity. Namesakes get their country, then their region, then their id in brackets.

    A country keeps its plain name even when a city shares it.
    """
    titles = {entity.id: entity.name for entity in entities.values()}
    for level in range(3):
        counts = Counter(fold(title) for title in titles.values())
        for entity in entities.values():
            if counts[fold(titles[entity.id])] > 1 and entity.kind is not Kind.COUNTRY:
                titles[entity.id] = f"{entity.name} ({_distinction(entity, entities, level)})"
    assert len({fold(title) for title in titles.values()}) == len(titles), "titles are not unique"
    return titles


def _distinction(entity: Entity, entities: Mapping[str, Entity], level: int) -> str:
    country = entities[entity.country].name
    if level == 0:
        # "Singapore (Singapore)" would say nothing: the capital of a city state is told by its kind.
        return str(entity.kind) if fold(country) == fold(entity.name) else country
    return f"{country}, {entity.region}" if level == 1 else f"{country}, {entity.id.rpartition('-')[2]}"


def country_components(entities: Mapping[str, Entity]) -> dict[str, str]:
    """Country id -> component. Countries whose names contain one another (Guinea, Guinea-Bissau) form one component."""
    names = {one.id: words(one.name) for one in entities.values() if one.kind is Kind.COUNTRY}
    root = {country: country for country in names}

    def find(country: str) -> str:
        while root[country] != country:
            country = root[country]
        return country

    for inner in sorted(names):
        for outer in sorted(names):
            if inner != outer and contains_words(names[outer], names[inner]):
                first, second = sorted((find(inner), find(outer)))
                root[second] = first
    return {country: find(country).removeprefix("country-") for country in names}


def _text(entity: Entity, titles: Mapping[str, str]) -> str:
    sentences = []
    for relation in stated_of(entity.kind):
        value = entity.facts.get(relation.name, "")
        if relation.value in (Kind.COUNTRY, Kind.CITY):
            value = titles.get(value, "")
        if value:
            sentences.append(relation.render(titles[entity.id], value))
    return " ".join(sentences)
