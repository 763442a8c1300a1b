"""Reading observations: what a result line or a page says about a subject. The teacher's decisions rest on
these.

The rule needs the observation only, so that it can be learned: a result line titled with the subject that
states the value is used as it is; a subject that titles no line (a code, say) may be named in another line
instead; else the page that fits the subject best is read. Only whether a text states the value is judged with
the known solution.
"""

import re
from dataclasses import dataclass

from afm_core.tools import fold


@dataclass(frozen=True)
class ResultLine:
    """One line of search results, `Title: sentence`."""

    title: str
    sentence: str


def result_lines(text: str) -> list[ResultLine]:
    """The result lines of a search observation; lines without a title are left out."""
    lines = (line.partition(": ") for line in text.splitlines())
    return [ResultLine(title.strip(), sentence.strip()) for title, colon, sentence in lines if colon]


def mentions(text: str, term: str) -> bool:
    """True if the term stands in the text as whole words; case does not matter."""
    return bool(term) and re.search(rf"(?<!\w){re.escape(term)}(?!\w)", text, re.IGNORECASE) is not None


def same(title: str, subject: str) -> bool:
    """True if a title is the subject; case, accents and spaces do not matter."""
    return fold(title) == fold(subject)


def about(line: ResultLine, subject: str) -> bool:
    """True if a result line is titled with the subject or names it."""
    return same(line.title, subject) or mentions(line.sentence, subject)


def stating_title(observation: str, subject: str, value: str) -> str | None:
    """Title of the result line that states the value of the subject, None if none does."""
    lines = result_lines(observation)
    titled = [line for line in lines if same(line.title, subject)]
    for line in titled or [line for line in lines if mentions(line.sentence, subject)]:
        if mentions(line.sentence, value) or (not titled and same(line.title, value)):
            return line.title
    return None


def has_page(observation: str, subject: str) -> bool:
    """True if a result line is titled with the subject."""
    return any(same(line.title, subject) for line in result_lines(observation))


def page_to_read(observation: str, subject: str) -> str:
    """Title of the page that fits the subject best, seen in search results; the subject itself if none
    does."""
    lines = result_lines(observation)
    titled = [line.title for line in lines if same(line.title, subject)]
    return next(iter(titled + [line.title for line in lines if mentions(line.sentence, subject)]), subject)


def other_page(observation: str, subject: str) -> str | None:
    """Title of a result that is about something else: the page to read by mistake."""
    return next((line.title for line in result_lines(observation) if not about(line, subject)), None)
