"""The relations of the world: what a document says of its subject, one sentence a fact.

One table serves both directions: the corpus builder renders facts into sentences, and the generator reads the frozen
texts back, so that a task's evidence is a span of the very text that a tool will show. A relation's name is what one
would type after the subject into a search box ("Bern population").
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class Kind(StrEnum):
    """What a subject or a value is."""

    COUNTRY = "country"
    CITY = "city"
    AIRPORT = "airport"
    CODE = "code"
    DOMAIN = "domain"
    CALLING_CODE = "calling code"
    LITERAL = "literal"


ENTITIES = (Kind.COUNTRY, Kind.CITY, Kind.AIRPORT)
"""Kinds that have a document; the others are attributes that name one."""


@dataclass(frozen=True)
class Relation:
    """One fact a subject may have, and the sentence that states it.

    `unit`: appended in an accepted variant of a number. `reads`: the forward relation that states this one, for
    reading a fact backwards.
    """

    subject: Kind
    name: str
    value: Kind
    sentence: str = ""
    numeric: bool = False
    unit: str = ""
    reads: str = ""

    @property
    def key(self) -> str:
        """Unique name, e.g. `city.population`."""
        return f"{self.subject}.{self.name}"

    def render(self, subject: str, value: str) -> str:
        """The sentence of one fact."""
        return self.sentence.format(subject=subject, value=value)

    @cached_property
    def _tail(self) -> re.Pattern[str]:
        before, after = self.sentence.removeprefix("{subject}").split("{value}")
        return re.compile(re.escape(before) + "(?P<value>.+)" + re.escape(after))

    def read(self, sentence: str, subject: str) -> tuple[int, int] | None:
        """Span of the value inside `sentence` when it states this relation of `subject`, else None."""
        if not sentence.startswith(subject):
            return None
        match = self._tail.fullmatch(sentence, len(subject))
        return match.span("value") if match else None


STATED: tuple[Relation, ...] = (
    Relation(Kind.COUNTRY, "capital", Kind.CITY, "{subject} has the capital {value}."),
    Relation(Kind.COUNTRY, "currency", Kind.LITERAL, "{subject} has the currency {value}."),
    Relation(Kind.COUNTRY, "continent", Kind.LITERAL, "{subject} lies on the continent {value}."),
    Relation(Kind.COUNTRY, "calling code", Kind.CALLING_CODE, "{subject} has the calling code {value}."),
    Relation(Kind.COUNTRY, "language", Kind.LITERAL, "{subject} has the official language {value}."),
    Relation(Kind.COUNTRY, "population", Kind.LITERAL, "{subject} has a population of {value}.", numeric=True),
    Relation(
        Kind.COUNTRY,
        "area",
        Kind.LITERAL,
        "{subject} has an area of {value} square kilometres.",
        numeric=True,
        unit="square kilometres",
    ),
    Relation(Kind.COUNTRY, "internet domain", Kind.DOMAIN, "{subject} has the internet domain {value}."),
    Relation(Kind.CITY, "country", Kind.COUNTRY, "{subject} is a city in the country {value}."),
    Relation(Kind.CITY, "population", Kind.LITERAL, "{subject} has a population of {value}.", numeric=True),
    Relation(Kind.CITY, "time zone", Kind.LITERAL, "{subject} has the time zone {value}."),
    Relation(Kind.AIRPORT, "city", Kind.CITY, "{subject} serves the city {value}."),
    Relation(Kind.AIRPORT, "code", Kind.CODE, "{subject} has the airport code {value}."),
    Relation(
        Kind.AIRPORT,
        "elevation",
        Kind.LITERAL,
        "{subject} lies at an elevation of {value} feet.",
        numeric=True,
        unit="feet",
    ),
    Relation(Kind.AIRPORT, "time zone", Kind.LITERAL, "{subject} has the time zone {value}."),
)

READ_BACKWARDS: tuple[Relation, ...] = (
    Relation(Kind.CODE, "airport", Kind.AIRPORT, reads="airport.code"),
    Relation(Kind.DOMAIN, "country", Kind.COUNTRY, reads="country.internet domain"),
    Relation(Kind.CALLING_CODE, "country", Kind.COUNTRY, reads="country.calling code"),
)

RELATIONS: dict[str, Relation] = {relation.key: relation for relation in (*STATED, *READ_BACKWARDS)}


def stated_of(kind: Kind) -> tuple[Relation, ...]:
    """Relations that documents of this kind state, in the order of their sentences."""
    return tuple(relation for relation in STATED if relation.subject is kind)


def relations_of(kind: Kind) -> tuple[Relation, ...]:
    """Relations that can be asked of a subject of this kind."""
    return tuple(relation for relation in RELATIONS.values() if relation.subject is kind)
