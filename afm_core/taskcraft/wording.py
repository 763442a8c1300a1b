"""How relations are put into words: questions about a subject, phrases that stand for a value, comparisons.

`{x}` is a name or the phrase of an earlier relation, so that wordings combine freely. The last wording of every tuple
is held out: it occurs in gate and test tasks only.
"""

from afm_core.data import Operation

QUESTIONS: dict[str, tuple[str, ...]] = {
    "country.capital": (
        "What is the capital of {x}?",
        "Which city is the capital of {x}?",
        "Name the capital city of {x}.",
        "{x} has which city as its capital?",
    ),
    "country.currency": (
        "What is the currency of {x}?",
        "Which currency is used in {x}?",
        "Which currency does {x} have?",
        "In which currency do people in {x} pay?",
    ),
    "country.continent": (
        "On which continent is {x}?",
        "Which continent does {x} belong to?",
        "What is the continent of {x}?",
        "{x} is part of which continent?",
    ),
    "country.calling code": (
        "What is the calling code of {x}?",
        "Which calling code does {x} have?",
        "What is the telephone code of {x}?",
        "Which prefix do callers dial for {x}?",
    ),
    "country.language": (
        "What is the official language of {x}?",
        "Which language is official in {x}?",
        "Name the official language of {x}.",
        "Which language does the government of {x} use?",
    ),
    "country.population": (
        "What is the population of {x}?",
        "How many people live in {x}?",
        "How many inhabitants does {x} have?",
        "What number of residents does {x} count?",
    ),
    "country.area": (
        "What is the area of {x} in square kilometres?",
        "How many square kilometres does {x} cover?",
        "How large is the area of {x} in square kilometres?",
        "Over how many square kilometres does {x} extend?",
    ),
    "country.internet domain": (
        "What is the internet domain of {x}?",
        "Which internet domain does {x} have?",
        "Which top-level domain belongs to {x}?",
        "How do web addresses of {x} end?",
    ),
    "city.country": (
        "In which country is {x}?",
        "Which country does {x} belong to?",
        "What is the country of {x}?",
        "{x} lies within which country?",
    ),
    "city.population": (
        "What is the population of {x}?",
        "How many people live in {x}?",
        "How many inhabitants does {x} have?",
        "What number of residents does {x} count?",
    ),
    "city.time zone": (
        "What is the time zone of {x}?",
        "Which time zone does {x} have?",
        "Which time zone is used in {x}?",
        "By which time zone are clocks set in {x}?",
    ),
    "airport.city": (
        "Which city does {x} serve?",
        "What city is served by {x}?",
        "What is the city of {x}?",
        "Passengers for which city use {x}?",
    ),
    "airport.code": (
        "What is the airport code of {x}?",
        "Which airport code does {x} have?",
        "What is the three-letter code of {x}?",
        "Which three letters identify {x}?",
    ),
    "airport.elevation": (
        "What is the elevation of {x} in feet?",
        "At how many feet does {x} lie?",
        "How high is {x} in feet?",
        "How many feet above the sea is {x}?",
    ),
    "airport.time zone": (
        "What is the time zone of {x}?",
        "Which time zone does {x} have?",
        "Which time zone is used at {x}?",
        "By which time zone are clocks set at {x}?",
    ),
    "code.airport": (
        "Which airport has the code {x}?",
        "What is the airport with the code {x}?",
        "Name the airport with the code {x}.",
        "{x} stands for which airport?",
    ),
    "domain.country": (
        "Which country has the internet domain {x}?",
        "Which country uses the domain {x}?",
        "Name the country with the internet domain {x}.",
        "Web addresses with {x} come from which country?",
    ),
    "calling code.country": (
        "Which country has the calling code {x}?",
        "Which country uses the telephone code {x}?",
        "Name the country with the calling code {x}.",
        "Dialling {x} reaches which country?",
    ),
}

PHRASES: dict[str, tuple[str, ...]] = {
    "country.capital": (
        "the capital of {x}",
        "the capital city of {x}",
        "the capital city in {x}",
        "the city that is the capital of {x}",
    ),
    "city.country": (
        "the country of {x}",
        "the country that has {x}",
        "the country with {x}",
        "the nation around {x}",
    ),
    "airport.city": (
        "the city served by {x}",
        "the city of {x}",
        "the city with {x}",
        "the place whose airport is {x}",
    ),
    "code.airport": (
        "the airport with code {x}",
        "the airport with the code {x}",
        "the airport coded {x}",
        "the airport that goes by {x}",
    ),
    "domain.country": (
        "the country with domain {x}",
        "the country with the internet domain {x}",
        "the country that uses {x}",
        "the country behind web addresses in {x}",
    ),
    "calling code.country": (
        "the country with calling code {x}",
        "the country with the telephone code {x}",
        "the country that has the calling code {x}",
        "the country reached by dialling {x}",
    ),
}

COMPARISONS: dict[tuple[str, Operation], tuple[str, ...]] = {
    ("city.population", Operation.LARGER): (
        "Which city has the larger population, {a} or {b}?",
        "Which city has more people, {a} or {b}?",
        "Which is more populous, {a} or {b}?",
        "Do more people live in {a} or in {b}?",
    ),
    ("city.population", Operation.SMALLER): (
        "Which city has the smaller population, {a} or {b}?",
        "Which city has fewer people, {a} or {b}?",
        "Which is less populous, {a} or {b}?",
        "Do fewer people live in {a} or in {b}?",
    ),
    ("country.population", Operation.LARGER): (
        "Which country has the larger population, {a} or {b}?",
        "Which country has more people, {a} or {b}?",
        "Which is more populous, {a} or {b}?",
        "Do more people live in {a} or in {b}?",
    ),
    ("country.population", Operation.SMALLER): (
        "Which country has the smaller population, {a} or {b}?",
        "Which country has fewer people, {a} or {b}?",
        "Which is less populous, {a} or {b}?",
        "Do fewer people live in {a} or in {b}?",
    ),
    ("country.area", Operation.LARGER): (
        "Which country has the larger area, {a} or {b}?",
        "Which country covers more square kilometres, {a} or {b}?",
        "Which area is larger, that of {a} or {b}?",
        "Does {a} or {b} take up more land?",
    ),
    ("country.area", Operation.SMALLER): (
        "Which country has the smaller area, {a} or {b}?",
        "Which country covers fewer square kilometres, {a} or {b}?",
        "Which area is smaller, that of {a} or {b}?",
        "Does {a} or {b} take up less land?",
    ),
    ("airport.elevation", Operation.LARGER): (
        "Which airport has the higher elevation, {a} or {b}?",
        "Which airport lies higher, {a} or {b}?",
        "Which is at a higher elevation, {a} or {b}?",
        "Is {a} or {b} further above the sea?",
    ),
    ("airport.elevation", Operation.SMALLER): (
        "Which airport has the lower elevation, {a} or {b}?",
        "Which airport lies lower, {a} or {b}?",
        "Which is at a lower elevation, {a} or {b}?",
        "Is {a} or {b} nearer to sea level?",
    ),
}


def sentence_case(question: str) -> str:
    """The question with a capital at its start."""
    return question[0].upper() + question[1:]
