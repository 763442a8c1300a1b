"""The always-search baseline: what tools alone are worth, without any model.

It searches the question as it stands, opens the page of the best result, and answers by one fixed rule: of the
sentences it has seen, take the one that shares most words with the question (inverse frequency weighted among those
sentences, earlier ones win ties), and from it the last number or capitalised phrase that the question does not name.
It cannot plan, so it is right about one-step questions at best; a learned policy must beat it by more than that.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from afm_core.data import AgentTask, Origin, Segment, Status, Tag, Trajectory, Usage
from afm_core.evaluation.protocols import Protocol
from afm_core.tools.protocol import Tool, ToolResult, ToolStatus

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_WORD = re.compile(r"\w+")
_PHRASE = re.compile(
    r"[+-]?\d(?:[\d,.]*\d)?"  # a number
    r"|[^\W\d_a-z][\w'.-]*(?:\s+(?:of|and|the|de|la|du|da|do|al)(?=\s+[^\W\d_a-z])|\s+[^\W\d_a-z][\w'.-]*)*"
)


def always_search(task: AgentTask, tools: Mapping[Tag, Tool], grammar: str) -> Trajectory:
    """One search, one page, one answer. Not scored; `answer` is None when nothing was found."""
    segments: list[Segment] = []
    found = _call(tools, (Tag.WEB_SEARCH, Tag.WIKI_SEARCH), task.question, segments)
    page = _call(tools, (Tag.CRAWL_PAGE,), _first_title(found.text if found else ""), segments)
    results = [result for result in (found, page) if result is not None]
    failed = any(result.status is ToolStatus.INFRA_ERROR for result in results)
    seen = "\n".join(result.text for result in results if result.status is ToolStatus.OK)
    answer = None if failed else best_phrase(task.question, seen)
    calls = len(results)
    segments.append(_mine(Tag.ANSWER, answer or ""))
    return Trajectory(
        id=f"{Protocol.ALWAYS_SEARCH}-{task.id}",
        task_id=task.id,
        question=task.question,
        answer=answer,
        grammar=grammar,
        source=str(Protocol.ALWAYS_SEARCH),
        segments=tuple(segments),
        status=Status.TOOL_ERROR if failed else Status.COMPLETED,
        usage=Usage(turns=1, tool_calls=calls),
    )


def best_phrase(question: str, text: str) -> str | None:
    """The last phrase, unknown to the question, of the sentence that is nearest to it; None if there is none."""
    asked = _words(question)
    sentences = [sentence for sentence in _SENTENCE.split(text) if sentence.strip()]
    for sentence in _nearest_first(asked, sentences):
        unknown = [phrase for phrase in phrases(sentence) if not _words(phrase) <= asked]
        if unknown:
            return unknown[-1]
    return None


def phrases(sentence: str) -> list[str]:
    """Numbers and runs of capitalised words, in order (`Port of Spain` is one)."""
    return [match.group().rstrip(" .,'-") for match in _PHRASE.finditer(sentence)]


def _nearest_first(asked: set[str], sentences: Sequence[str]) -> list[str]:
    words = [_words(sentence) for sentence in sentences]
    frequency = Counter(word for one in words for word in one)
    weights = [sum(math.log(1 + len(words) / frequency[word]) for word in sorted(one & asked)) for one in words]
    order = sorted(range(len(sentences)), key=lambda index: (-weights[index], index))
    return [sentences[index] for index in order]


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)}


def _call(tools: Mapping[Tag, Tool], tags: Sequence[Tag], argument: str, segments: list[Segment]) -> ToolResult | None:
    """Call the first of the tags that is bound, and record the call; None without such a tool or an argument."""
    tag = next((tag for tag in tags if tag in tools), None)
    if tag is None or not argument:
        return None
    result = tools[tag].call(argument)
    segments += [_mine(tag, argument), Segment(origin=Origin.TOOL, tag=Tag.OBSERVATION, text=result.text)]
    return result


def _first_title(results: str) -> str:
    """The title of the first result line (`Title: sentence`)."""
    line = next((line for line in results.splitlines() if ":" in line), "")
    return line.partition(":")[0].strip()


def _mine(tag: Tag, text: str) -> Segment:
    # Not sampled by any model; `teacher` is the origin of elements that code wrote, so the viewer can show them.
    return Segment(origin=Origin.TEACHER, tag=tag, text=text)
