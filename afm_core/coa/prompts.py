"""Prompts, in our own words. FULL explains the language to a model that never saw it; BRIEF names it, for
one that did.

Layout: instruction, then examples if any, then a blank line and `Question: ...`, all in one user turn.
"""

from collections.abc import Mapping, Sequence

from afm_core.coa.grammar import Grammar
from afm_core.coa.parser import parse
from afm_core.coa.profiles import grammar_for
from afm_core.coa.traces import render_trajectory
from afm_core.config import GrammarName, PromptStyle
from afm_core.data import Tag, Trajectory

_ROLES: dict[Tag, str] = {
    Tag.THINK: "reason briefly about what to do next and why",
    Tag.PLAN: "split the question into small steps, one after the other",
    Tag.REFLECTION: "judge the progress so far; if anything is poor, a new plan must follow",
    Tag.SUGGESTED_ANSWER: "propose an answer, as short as possible",
    Tag.DOUBLE_CHECK: "weigh the proposal and end with `Score: N`, N from 1 (wrong) to 4 (right)",
    Tag.ANSWER: "the final answer alone; it ends your work",
}

_TOOLS: dict[Tag, str] = {
    Tag.WIKI_SEARCH: "look a short query up in an encyclopedia",
    Tag.WEB_SEARCH: "search with a short query",
    Tag.CRAWL_PAGE: "read whole pages, several divided by ` | `",
    Tag.CODE: "run Python given as one ```py block; print what you need",
    Tag.VISUAL_INSPECTOR: 'ask about an image: a ```json block with "file_path" and "question"',
}

_NAMES: dict[GrammarName, str] = {
    GrammarName.MHQA: "Encyclopedia agent",
    GrammarName.WEB: "Web agent",
    GrammarName.CODE: "Code agent",
    GrammarName.MULTI_TOOL: "Multi-tool agent",
}

_CHECKED = (
    "Think before every plan, tool, reflection, suggested_answer and double_check. A suggested_answer is "
    "followed by its double_check: with a score of 1 or 2 plan again, with 3 or 4 repeat the suggestion as "
    "the answer."
)

_RULES: dict[GrammarName, str] = {
    GrammarName.MHQA: (
        "Think before every other element. Search as often as needed. "
        "After a reflection, plan or search again unless you are sure. Divide several answers by |."
    ),
    GrammarName.WEB: _CHECKED,
    GrammarName.CODE: (
        "Exactly one plan, first. Then as often as needed: think, code, observation, reflection. "
        "At the end: think, answer."
    ),
    GrammarName.MULTI_TOOL: f"{_CHECKED} Compute with code, never in your head.",
}

_SKELETONS: dict[GrammarName, tuple[Tag, ...]] = {
    GrammarName.MHQA: (Tag.THINK, Tag.PLAN, Tag.WIKI_SEARCH, Tag.OBSERVATION, Tag.THINK, Tag.ANSWER),
    GrammarName.CODE: (Tag.PLAN, Tag.THINK, Tag.CODE, Tag.OBSERVATION, Tag.REFLECTION, Tag.THINK, Tag.ANSWER),
}
_WEB_END = (Tag.OBSERVATION, Tag.THINK, Tag.SUGGESTED_ANSWER, Tag.DOUBLE_CHECK, Tag.ANSWER)


def prompt(
    question: str,
    grammar: Grammar | GrammarName,
    style: PromptStyle,
    tools: Mapping[Tag, object] | Sequence[Tag] = (),
    examples: Sequence[Trajectory] = (),
) -> str:
    """The user turn. `tools`: the bound tags, as a mapping to a text or an object with `description`;
    empty: all.

    Raises ValueError for a tool that the profile does not have.
    """
    profile = grammar if isinstance(grammar, Grammar) else grammar_for(grammar)
    bound = _bound(profile, tools)
    instruction = _full(profile, bound) if style is PromptStyle.FULL else _brief(profile, bound)
    shown = [f"Question: {example.question}\n{render_trajectory(example)}" for example in examples]
    return "\n\n".join([instruction, *shown, f"Question: {question}"])


def closed_book_prompt(question: str, examples: Sequence[Trajectory | tuple[str, str]] = ()) -> str:
    """The user turn of an attempt without tools. Examples: (question, answer) pairs, or trajectories that
    have both.
    """
    instruction = f"Answer from memory, as briefly as possible, as <{Tag.ANSWER}>...</{Tag.ANSWER}>."
    shown = []
    for example in examples:
        asked, answer = example if isinstance(example, tuple) else (example.question, example.answer or "")
        shown.append(f"Question: {asked}\n<{Tag.ANSWER}>{answer}</{Tag.ANSWER}>")
    return "\n\n".join([instruction, *shown, f"Question: {question}"])


def closed_book_answer(text: str) -> str:
    """What a closed-book reply answers: its last answer element, else its first line that is not blank."""
    answers = [element.text for element in parse(text).elements if element.tag is Tag.ANSWER]
    if answers:
        return answers[-1].strip()
    lines = text.strip().splitlines()
    return lines[0].strip() if lines else ""


def _bound(grammar: Grammar, tools: Mapping[Tag, object] | Sequence[Tag]) -> dict[Tag, str]:
    wanted = {Tag(tag): _description(Tag(tag), tools) for tag in tools} or {tag: _TOOLS[tag] for tag in grammar.tools}
    for tag in wanted:
        if tag not in grammar.tools:
            raise ValueError(f"the profile {grammar.name} has no tool <{tag}>; it has {', '.join(grammar.tools)}")
    return wanted


def _description(tag: Tag, tools: Mapping[Tag, object] | Sequence[Tag]) -> str:
    given = tools[tag] if isinstance(tools, Mapping) else None
    if isinstance(given, str):
        return given
    return getattr(given, "description", None) or _TOOLS[tag]


def _brief(grammar: Grammar, tools: Mapping[Tag, str]) -> str:
    acting = [tag for tag in grammar.roles if tag is not Tag.ANSWER]
    names = [*acting[:2], *tools, *acting[2:], Tag.ANSWER]
    return f"{_NAMES[grammar.name]}: {', '.join(names)}."


def _full(grammar: Grammar, tools: Mapping[Tag, str]) -> str:
    roles = "\n".join(f"<{tag}>: {_ROLES[tag]}" for tag in grammar.roles)
    acts = "\n".join(f"<{tag}>: {text}" for tag, text in tools.items())
    middle = (Tag.THINK, Tag.PLAN, next(iter(tools)), *_WEB_END)
    skeleton = "".join(f"<{tag}>...</{tag}>" for tag in _SKELETONS.get(grammar.name, middle))
    return (
        "Solve the question alone, playing every role of a team of agents in turn. Write only these elements, "
        "each opened and closed by its tag, and never a tag inside an element's text.\n"
        f"Roles:\n{roles}\nTools:\n{acts}\n"
        f"After a tool's closing tag the result is inserted as <{Tag.OBSERVATION}>: never write one.\n"
        f"{_RULES[grammar.name]}\nForm: {skeleton}"
    )
