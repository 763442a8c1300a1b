"""The documents: enough of them, unique titles, one component's names only, equal seeds equal texts."""

import re
from collections import defaultdict

import pytest

from afm_core.config import CorpusConfig
from afm_core.data import Document
from afm_core.taskcraft import Kind, corpus_documents, read_facts
from afm_core.taskcraft.corpus import Entity, country_components, documents_of, unique_titles
from afm_core.taskcraft.relations import ENTITIES, stated_of
from afm_core.tools import fold, sentences, words


def test_world_has_at_least_3000_documents_with_licence_and_text(world: list[Document]) -> None:
    assert len(world) >= 3000
    assert all(document.text and document.licence and document.url and document.component for document in world)
    assert len({document.id for document in world}) == len(world)


@pytest.mark.parametrize("source", ["world", "micro"])
def test_titles_are_unique_even_without_case_and_accents(source: str, request: pytest.FixtureRequest) -> None:
    documents = request.getfixturevalue(source)
    assert len({fold(document.title) for document in documents}) == len(documents)


@pytest.mark.parametrize("source", ["world", "micro"])
def test_every_sentence_states_a_relation_of_its_title(source: str, request: pytest.FixtureRequest) -> None:
    for document in request.getfixturevalue(source):
        kind = Kind(document.id.partition("-")[0])
        for start, end in sentences(document.text):
            sentence = document.text[start:end]
            assert any(relation.read(sentence, document.title) for relation in stated_of(kind)), sentence
            assert sentence.count(". ") == document.title.count(". ") or "capital" in sentence or "city" in sentence
        assert len(sentences(document.text)) <= len(stated_of(kind))


def test_usable_documents_name_no_usable_entity_of_another_component(world: list[Document]) -> None:
    graph = read_facts(world)
    homes: dict[tuple[str, ...], str] = {}
    for (_, title), node in graph.nodes.items():
        if node.eligible:
            homes[tuple(words(title))] = node.component
    longest = max(map(len, homes))
    usable = {title for (_, title), node in graph.nodes.items() if node.eligible}
    for document in world:
        if document.title not in usable:
            continue
        # Literals may recur (the currency Marka is not the Somali city), and a namesake is another thing: Armenia
        # (Colombia) is a city that no task uses.
        zone = re.search(r"time zone (?:\S+/)?(\S+)\.", document.text)
        if zone:
            assert homes.get(tuple(words(zone[1].replace("_", " "))), document.component) == document.component
        shown = document.text
        for fact in graph.facts[Kind(document.id.partition("-")[0]), document.title].values():
            if fact.relation.value not in ENTITIES or not graph.usable(fact.relation.value, fact.value):
                shown = shown.replace(f" {fact.value}", "")
        text = words(shown)
        for start in range(len(text)):
            for end in range(start + 1, start + longest + 1):
                assert homes.get(tuple(text[start:end]), document.component) == document.component, document.text


@pytest.mark.parametrize("source", ["world", "micro"])
def test_equal_configurations_give_equal_documents(source: str, request: pytest.FixtureRequest) -> None:
    again = corpus_documents(CorpusConfig(source=source))  # type: ignore[arg-type]
    assert again == request.getfixturevalue(source)


def test_another_seed_gives_another_micro_world(micro: list[Document]) -> None:
    other = corpus_documents(CorpusConfig(source="micro", seed=1))
    assert {one.title for one in other} != {one.title for one in micro}


def test_micro_world_has_several_components_of_every_kind(micro: list[Document]) -> None:
    kinds = defaultdict(set)
    for document in micro:
        kinds[document.component].add(document.id.partition("-")[0])
    assert len(kinds) >= 12
    assert all(found == {"country", "city", "airport"} for found in kinds.values())


def _entity(identifier: str, kind: Kind, name: str, country: str, **facts: str) -> Entity:
    return Entity(identifier, kind, name, country, facts)


def test_namesakes_get_country_region_or_id_and_countries_keep_their_name() -> None:
    rows = [
        _entity("country-A", Kind.COUNTRY, "Singapore", "country-A"),
        _entity("country-B", Kind.COUNTRY, "Bland", "country-B"),
        _entity("city-1", Kind.CITY, "Singapore", "country-A"),
        _entity("city-2", Kind.CITY, "Tow", "country-A"),
        _entity("city-3", Kind.CITY, "Töw", "country-B"),
        Entity("city-4", Kind.CITY, "Dup", "country-B", {}, "R"),
        Entity("city-5", Kind.CITY, "Dup", "country-B", {}, "R"),
    ]
    titles = unique_titles({one.id: one for one in rows})
    assert titles == {
        "country-A": "Singapore",
        "country-B": "Bland",
        "city-1": "Singapore (city)",
        "city-2": "Tow (Singapore)",
        "city-3": "Töw (Bland)",
        "city-4": "Dup (Bland, 4)",
        "city-5": "Dup (Bland, 5)",
    }


def test_countries_named_inside_another_share_a_component() -> None:
    names = {"GN": "Guinea", "GW": "Guinea-Bissau", "NE": "Niger", "NG": "Nigeria"}
    rows = {
        f"country-{code}": _entity(f"country-{code}", Kind.COUNTRY, name, f"country-{code}")
        for code, name in names.items()
    }
    components = country_components(rows)
    assert components["country-GN"] == components["country-GW"]
    assert components["country-NE"] != components["country-NG"]


def test_missing_facts_are_left_out_of_the_text() -> None:
    country = _entity("country-A", Kind.COUNTRY, "Aland", "country-A", capital="city-gone", area="5", currency="")
    (document,) = documents_of([country])
    assert document.text == "Aland has an area of 5 square kilometres."


def test_an_airport_serves_the_near_one_of_two_namesakes(world: list[Document]) -> None:
    """John Glenn airport (Ohio) served the bigger or wrong Columbus when only the name was compared."""
    texts = {document.title: document.text for document in world}
    assert "serves the city Columbus (United States, OH)." in texts["John Glenn Columbus International Airport"]
