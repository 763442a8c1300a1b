"""When two short answers are the same: SQuAD's normalisation, made safe for numbers, lists and other scripts.

SQuAD's official script lowercases, drops punctuation and articles, and squeezes white space. Departures, each because
the original makes different answers equal or equal ones different: decimal points, minus signs, `+`, `#` and currencies
stay (1.5 is not 15, C++ is not C), hyphens and slashes divide words, Latin accents are folded, thousands separators go,
a text of articles or punctuation only is kept as it is. Numbers are compared as numbers, with a known unit on one side
or the same on both.
"""

import re
import unicodedata
from fractions import Fraction

_ACCENTS = re.compile("[\u0300-\u036f]")
_THOUSANDS = re.compile(r"(?<=\d)[,\u00a0\u202f '’](?=\d{3}(?!\d))")
_MINUS = re.compile(r"(?<!\S)[-\u2212](?=\d)")
_DIVIDERS = re.compile(r"[-/\u2010-\u2015_]|(?<=\d),(?=\d)")
_DROPPED = re.compile(r"(?<!\d)\.|\.(?!\d)|[^\w\s.+#$€£¥%]")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NUMBER = re.compile(r"([$€£¥]?)\s*([-+\u2212]?\d{1,40}(?:\.\d{1,40})?)\s*(.{0,40})")
_MAGNITUDES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_UNITS = {
    "%": "percent", "percent": "percent", "per cent": "percent",
    "m": "metre", "metre": "metre", "metres": "metre", "meter": "metre", "meters": "metre",
    "km": "kilometre", "kilometre": "kilometre", "kilometres": "kilometre", "kilometer": "kilometre",
    "kilometers": "kilometre", "ft": "foot", "foot": "foot", "feet": "foot", "mi": "mile", "mile": "mile",
    "miles": "mile", "km2": "square kilometre", "square kilometres": "square kilometre",
    "square kilometers": "square kilometre", "sq km": "square kilometre", "kg": "kilogram", "kilograms": "kilogram",
    "g": "gram", "grams": "gram", "people": "person", "inhabitants": "person", "persons": "person", "years": "year",
    "year": "year", "days": "day", "hours": "hour", "minutes": "minute", "seconds": "second", "dollars": "$",
    "usd": "$", "euros": "€", "eur": "€", "pounds": "£", "yen": "¥", "degrees": "degree", "°": "degree",
}  # fmt: skip


def normalize(text: str) -> str:
    """The comparable form of a short text; never empty for a text that holds anything but white space."""
    folded = _ACCENTS.sub("", unicodedata.normalize("NFKD", text.casefold()))
    folded = _THOUSANDS.sub("", unicodedata.normalize("NFKC", folded).casefold())
    folded = _MINUS.sub("minus ", folded)
    kept = _ARTICLES.sub(" ", _DROPPED.sub("", _DIVIDERS.sub(" ", folded)))
    return " ".join(kept.split()) or " ".join(folded.split())


def number_of(text: str) -> tuple[Fraction, str] | None:
    """A text that is one number, with its unit ("" without one): `1,234 km` is (1234, "kilometre"). Else None."""
    plain = _THOUSANDS.sub("", unicodedata.normalize("NFKC", text.casefold()).strip().rstrip(".").strip())
    match = _NUMBER.fullmatch(plain)
    if match is None:
        return None
    currency, digits, rest = match.groups()
    value = Fraction(digits.replace("\u2212", "-"))
    word, _, after = rest.partition(" ")
    if word in _MAGNITUDES:
        value, rest = value * _MAGNITUDES[word], after.strip()
    unit = _UNITS.get(rest.strip()) if rest else ""
    if unit is None or (currency and unit not in ("", currency)):
        return None
    return value, unit or currency


def same(left: str, right: str) -> bool:
    """Whether two texts are the same answer. `|` divides lists, which are compared without regard to order."""
    first, second = _items(left), _items(right)
    if len(first) != len(second):
        return False
    for item in first:
        match = next((other for other in second if _same_item(item, other)), None)
        if match is None:
            return False
        second.remove(match)
    return True


def _items(text: str) -> list[str]:
    return [item for item in text.split("|") if item.strip()] or [text]


def _same_item(left: str, right: str) -> bool:
    if normalize(left) == normalize(right):
        return True
    first, second = number_of(left), number_of(right)
    if first is None or second is None or first[0] != second[0]:
        return False
    return first[1] == second[1] or not first[1] or not second[1]
