"""The micro world: a few dozen invented entities of the same shape as the real one, for the smoke profile.

Names are made of few syllables, so that a tokenizer of some hundred entries spells them in few tokens.
"""

import random

from afm_core.data import Document
from afm_core.taskcraft.corpus import Entity, documents_of
from afm_core.taskcraft.relations import Kind

COUNTRIES = 20
CITIES_PER_COUNTRY = 3
AIRPORTS_PER_COUNTRY = 2

_SYLLABLES = ("ba", "do", "ki", "lu", "me", "na", "po", "ra", "si", "tu", "ve", "zo")
_CURRENCIES = ("dena", "koro", "luma", "pavi")
_CONTINENTS = ("Auro", "Besta", "Corda")
_LANGUAGES = ("Banese", "Dorish", "Kivan", "Lutish")
_LETTERS = "ABCDEFGHIKLMNOPRSTUVZ"


def micro_documents(seed: int) -> list[Document]:
    """The documents of the micro world; equal seeds give equal worlds."""
    generator = random.Random(f"micro {seed}")
    names = _names(generator, COUNTRIES * (1 + CITIES_PER_COUNTRY + AIRPORTS_PER_COUNTRY))
    codes = _distinct(generator, COUNTRIES * AIRPORTS_PER_COUNTRY, _LETTERS, 3)
    domains = _distinct(generator, COUNTRIES, _LETTERS.lower(), 2)
    calling = generator.sample(range(20, 99), COUNTRIES)
    entities: list[Entity] = []
    for index in range(COUNTRIES):
        country = f"country-{index:02}"
        cities = [f"city-{index:02}{number}" for number in range(CITIES_PER_COUNTRY)]
        zone = f"{generator.choice(_CONTINENTS)}/{domains[index].upper()}"
        entities.append(
            _country(country, names.pop(), cities[0], f".{domains[index]}", f"+{calling[index]}", generator)
        )
        for city in cities:
            facts = {"country": country, "population": _number(generator, 100, 999), "time zone": zone}
            entities.append(Entity(city, Kind.CITY, names.pop(), country, facts, licence="Apache-2.0"))
        for number in range(AIRPORTS_PER_COUNTRY):
            facts = {
                "city": cities[number],
                "code": codes.pop(),
                "elevation": _number(generator, 10, 999),
                "time zone": zone,
            }
            identifier = f"airport-{index:02}{number}"
            entities.append(
                Entity(identifier, Kind.AIRPORT, f"{names.pop()} Airport", country, facts, licence="Apache-2.0")
            )
    return documents_of(entities)


def _country(identifier: str, name: str, capital: str, domain: str, calling: str, generator: random.Random) -> Entity:
    facts = {
        "capital": capital,
        "currency": generator.choice(_CURRENCIES),
        "continent": generator.choice(_CONTINENTS),
        "calling code": calling,
        "language": generator.choice(_LANGUAGES),
        "population": _number(generator, 1000, 9999),
        "area": _number(generator, 100, 999),
        "internet domain": domain,
    }
    return Entity(identifier, Kind.COUNTRY, name, identifier, facts, licence="Apache-2.0")


def _names(generator: random.Random, count: int) -> list[str]:
    """`count` distinct names of two or three syllables, none contained in another word of a name."""
    pairs = [first + second for first in _SYLLABLES for second in _SYLLABLES if first != second]
    names = [name.capitalize() for name in pairs]
    generator.shuffle(names)
    assert count <= len(names), "too few syllables for the micro world"
    return names[:count]


def _distinct(generator: random.Random, count: int, alphabet: str, length: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(generator.choice(alphabet) for _ in range(length))] = None
    return list(found)


def _number(generator: random.Random, low: int, high: int) -> str:
    return str(generator.randint(low, high))
