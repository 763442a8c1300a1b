"""The two tools of a frozen corpus: search it, and read a page of it. No network, the same answer every time."""

import difflib
import time
from collections.abc import Callable, Sequence

import numpy as np

from afm_core.data import Document
from afm_core.tools.index import SentenceIndex
from afm_core.tools.protocol import ToolResult, ToolStatus
from afm_core.tools.text import cut, fold, without_title, words

LONGEST_ARGUMENT = 400
"""Characters; a longer argument is a malformed call (usually a generation that ran away)."""

PAGE_SEPARATOR = "|"
MOST_PAGES = 5
NO_RESULTS = "No results."


class SearchLocal:
    """BM25 over the corpus: k lines `Title: sentence`, best first.

    A sentence that begins with its title is shown without it (`Bern: has a population of 121631.`): small models pay
    for every token. `components`: search only documents of these components (None: all). `limit`: characters.
    """

    name = "search_local"
    description = "search the documents; argument: what to look for, e.g. an entity and what you want to know of it"

    def __init__(
        self, index: SentenceIndex, k: int = 3, components: frozenset[str] | None = None, limit: int = 640
    ) -> None:
        self._index = index
        self._k = k
        self._limit = limit
        self._allowed = (
            None
            if components is None
            else np.array([document.component in components for document in index.documents], dtype=bool)
        )

    def call(self, argument: str) -> ToolResult:
        """Search; finding nothing is NOT_FOUND, never an error."""
        return _timed(argument, self._run)

    def _run(self, argument: str) -> ToolResult:
        hits = self._index.search(argument, self._k, self._allowed)
        if not hits:
            return ToolResult(ToolStatus.NOT_FOUND, NO_RESULTS)
        lines = [result_line(hit.document.title, hit.sentence) for hit in hits]
        text, truncated = cut("\n".join(lines), self._limit)
        return ToolResult(ToolStatus.OK, text, truncated)


class ReadLocal:
    """The text of a document by title (case, accents and spaces do not matter) or URL; several joined by ` | `."""

    name = "read_local"
    description = "read a document; argument: its exact title, or several titles joined by ' | '"

    def __init__(
        self, documents: Sequence[Document], components: frozenset[str] | None = None, limit: int = 640
    ) -> None:
        self._limit = limit
        shown = [one for one in documents if components is None or one.component in components]
        self._pages = {fold(one.title): one for one in sorted(shown, key=lambda one: one.id, reverse=True)}
        self._pages.update({fold(one.url): one for one in shown if one.url})
        self._titles = {fold(one.title): one.title for one in shown}
        self._by_word: dict[str, set[str]] = {}
        for title in self._titles:
            for word in (*words(title), title[:2]):
                self._by_word.setdefault(word, set()).add(title)

    def call(self, argument: str) -> ToolResult:
        """Read; a title that does not exist is NOT_FOUND with the nearest titles. OK when at least one exists."""
        return _timed(argument, self._run)

    def _run(self, argument: str) -> ToolResult:
        asked = [part.strip() for part in argument.split(PAGE_SEPARATOR) if part.strip()]
        if not asked:
            return ToolResult(ToolStatus.BAD_ARGUMENTS, "Empty title: write the title of a page.")
        if len(asked) > MOST_PAGES:
            return ToolResult(ToolStatus.BAD_ARGUMENTS, f"At most {MOST_PAGES} pages a call.")
        found = [self._pages.get(fold(title)) for title in asked]
        parts = [page.text if page else self._missing(title) for page, title in zip(found, asked, strict=True)]
        text, truncated = cut("\n".join(parts), self._limit)
        return ToolResult(ToolStatus.OK if any(found) else ToolStatus.NOT_FOUND, text, truncated)

    def _missing(self, title: str) -> str:
        folded = fold(title)
        candidates = set().union(*(self._by_word.get(word, ()) for word in (*words(title), folded[:2])))
        near = difflib.get_close_matches(folded, sorted(candidates), n=3, cutoff=0.4)
        hint = f" Nearest: {' | '.join(self._titles[one] for one in near)}" if near else ""
        return f"No page {title[:60]!r}.{hint}"


def result_line(title: str, sentence: str) -> str:
    """`Title: sentence`, the sentence without its leading title."""
    return f"{title}: {' '.join(without_title(sentence, title).split())}"


def _timed(argument: str, run: Callable[[str], ToolResult]) -> ToolResult:
    """Check the argument, run, and note the seconds. A malformed call is answered here and never dispatched."""
    if not isinstance(argument, str) or not words(argument):
        return ToolResult(ToolStatus.BAD_ARGUMENTS, "Empty call: write what you look for between the tags.")
    if len(argument) > LONGEST_ARGUMENT:
        return ToolResult(ToolStatus.BAD_ARGUMENTS, f"Call too long: at most {LONGEST_ARGUMENT} characters.")
    started = time.perf_counter()
    result = run(argument)
    seconds = time.perf_counter() - started
    return ToolResult(result.status, result.text, result.truncated, seconds, result.cached)
