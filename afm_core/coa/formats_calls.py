"""Tool calls of other systems: which tag they become, and how their arguments become an element's text and
back.
"""

import json
from typing import Any

from afm_core.coa.formats_build import Dropped, DropReason
from afm_core.coa.readings import python_and_stdin
from afm_core.data import TOOL_TAGS, Tag

FINAL_ANSWER = "final_answer"

_ALIASES: dict[str, Tag] = {
    "search": Tag.WEB_SEARCH,
    "google_search": Tag.WEB_SEARCH,
    "duckduckgo_search": Tag.WEB_SEARCH,
    "wikipedia_search": Tag.WIKI_SEARCH,
    "wiki": Tag.WIKI_SEARCH,
    "wiki_retrieve": Tag.WIKI_SEARCH,
    "crawl": Tag.CRAWL_PAGE,
    "crawl_pages": Tag.CRAWL_PAGE,
    "visit": Tag.CRAWL_PAGE,
    "visit_page": Tag.CRAWL_PAGE,
    "visit_webpage": Tag.CRAWL_PAGE,
    "read_page": Tag.CRAWL_PAGE,
    "python": Tag.CODE,
    "python_interpreter": Tag.CODE,
    "code_interpreter": Tag.CODE,
    "execute_code": Tag.CODE,
    "inspect_file_as_image": Tag.VISUAL_INSPECTOR,
    "visualizer": Tag.VISUAL_INSPECTOR,
}

_KEYS: dict[Tag, tuple[str, ...]] = {
    Tag.WEB_SEARCH: ("query", "q", "search_query", "queries"),
    Tag.WIKI_SEARCH: ("query", "q", "search_query", "queries"),
    Tag.CRAWL_PAGE: ("url", "urls", "page", "title"),
    Tag.CODE: ("code", "source", "python"),
}


def tag_of_tool(name: str) -> Tag:
    """The tag of a tool of another system. Raises Dropped for an unknown one."""
    lowered = name.strip().lower()
    if lowered in _ALIASES:
        return _ALIASES[lowered]
    if lowered in {tag.value for tag in TOOL_TAGS}:
        return Tag(lowered)
    raise Dropped(DropReason.UNKNOWN_TOOL, f"the tool {name!r} has no tag in the language")


def argument_text(tag: Tag, arguments: Any) -> str:
    """The text between a call's tags. Raises Dropped for arguments that cannot be read; never guesses."""
    value = _loaded(tag, arguments)
    if tag is Tag.VISUAL_INSPECTOR:
        if not isinstance(value, dict):
            raise _malformed(tag, arguments)
        return f"\n```json\n{json.dumps(value, ensure_ascii=False)}\n```\n"
    if isinstance(value, dict):
        keys = [key for key in _KEYS[tag] if key in value]
        value = value[keys[0]] if keys else None
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        value = " | ".join(value)
    if not isinstance(value, str) or not value.strip():
        raise _malformed(tag, arguments)
    if tag is Tag.CODE and python_and_stdin(value) is None:
        return f"\n```py\n{value.strip()}\n```\n"
    return value


def arguments_of(tag: Tag, text: str) -> str:
    """JSON arguments of a call, the way back from `argument_text`."""
    if tag is Tag.VISUAL_INSPECTOR:
        body = text.strip().removeprefix("```json").removesuffix("```").strip()
        try:
            return json.dumps(json.loads(body), ensure_ascii=False)
        except ValueError:
            return json.dumps({"text": text}, ensure_ascii=False)
    value = text
    if tag is Tag.CODE:
        parts = python_and_stdin(text)
        if parts is not None and argument_text(tag, parts[0]) == text:
            value = parts[0]
    return json.dumps({_KEYS[tag][0]: value}, ensure_ascii=False)


def _loaded(tag: Tag, arguments: Any) -> Any:
    """Arguments that are JSON text are loaded; code and free text stay what they are."""
    if not isinstance(arguments, str):
        return arguments
    if arguments.lstrip()[:1] not in ("{", "[", '"'):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        if tag is Tag.CODE:
            return arguments
        raise _malformed(tag, arguments) from None


def _malformed(tag: Tag, arguments: Any) -> Dropped:
    return Dropped(DropReason.MALFORMED_ARGUMENTS, f"arguments of <{tag}> cannot be read: {str(arguments)[:80]!r}")
