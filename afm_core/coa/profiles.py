"""The four profiles of the grammar, as tables: what may follow what, think left out (see
afm_core.coa.grammar).

Sources: arXiv 2508.13167, appendices C and D, and the authors' published prompts. Where these say nothing
(the start, and most of mhqa) the tables are permissive.
"""

from functools import cache

from afm_core.coa.grammar import START, Grammar
from afm_core.config import GrammarName
from afm_core.data import Tag

_WEB_ROLES = (Tag.THINK, Tag.PLAN, Tag.REFLECTION, Tag.SUGGESTED_ANSWER, Tag.DOUBLE_CHECK, Tag.ANSWER)
_SHORT_ROLES = (Tag.THINK, Tag.PLAN, Tag.REFLECTION, Tag.ANSWER)


def _web_family(name: GrammarName, tools: tuple[Tag, ...], reflect_anywhere: bool) -> Grammar:
    """Profiles with a suggested answer that is checked before it is given."""
    acts = frozenset(tools)
    anywhere = frozenset({Tag.REFLECTION}) if reflect_anywhere else frozenset()
    return Grammar(
        name=name,
        tools=tools,
        roles=_WEB_ROLES,
        successors={
            START: acts | anywhere | {Tag.PLAN, Tag.SUGGESTED_ANSWER},
            Tag.PLAN: acts | anywhere | {Tag.SUGGESTED_ANSWER},
            Tag.OBSERVATION: acts | {Tag.REFLECTION, Tag.SUGGESTED_ANSWER},
            Tag.REFLECTION: acts | {Tag.PLAN, Tag.SUGGESTED_ANSWER},
            Tag.SUGGESTED_ANSWER: frozenset({Tag.DOUBLE_CHECK}),
            Tag.DOUBLE_CHECK: acts | {Tag.PLAN, Tag.ANSWER},
        },
        think_before=acts | {Tag.PLAN, Tag.REFLECTION, Tag.DOUBLE_CHECK, Tag.SUGGESTED_ANSWER},
        replan_when_poor=True,
    )


def _mhqa() -> Grammar:
    """Multi-hop QA over one search tool: the answer comes straight after thinking."""
    steps = frozenset({Tag.PLAN, Tag.WIKI_SEARCH, Tag.ANSWER})
    return Grammar(
        name=GrammarName.MHQA,
        tools=(Tag.WIKI_SEARCH,),
        roles=_SHORT_ROLES,
        successors={
            START: steps,
            Tag.PLAN: steps - {Tag.PLAN},
            Tag.OBSERVATION: steps | {Tag.REFLECTION},
            Tag.REFLECTION: steps,
        },
        think_before=steps | {Tag.REFLECTION},
    )


def _code() -> Grammar:
    """plan, (think, code, observation, reflection)*, think, answer."""
    return Grammar(
        name=GrammarName.CODE,
        tools=(Tag.CODE,),
        roles=_SHORT_ROLES,
        successors={
            START: frozenset({Tag.PLAN}),
            Tag.PLAN: frozenset({Tag.CODE, Tag.ANSWER}),
            Tag.OBSERVATION: frozenset({Tag.REFLECTION}),
            Tag.REFLECTION: frozenset({Tag.CODE, Tag.ANSWER}),
        },
        think_before=frozenset({Tag.CODE, Tag.ANSWER}),
        think_each=True,
        no_think_after=frozenset({START, Tag.OBSERVATION}),
        single_plan=True,
    )


@cache
def grammar_for(name: GrammarName | str) -> Grammar:
    """The profile of that name. Raises ValueError for an unknown name."""
    profile = GrammarName(name)
    if profile is GrammarName.MHQA:
        return _mhqa()
    if profile is GrammarName.CODE:
        return _code()
    if profile is GrammarName.WEB:
        return _web_family(profile, (Tag.WEB_SEARCH, Tag.CRAWL_PAGE, Tag.WIKI_SEARCH), False)
    tools = (Tag.WEB_SEARCH, Tag.CRAWL_PAGE, Tag.CODE, Tag.VISUAL_INSPECTOR)
    return _web_family(GrammarName.MULTI_TOOL, tools, True)


def stop_strings(grammar: Grammar) -> tuple[str, ...]:
    """Where a generation turn ends: after a tool call or the answer, or when the model begins an
    observation.
    """
    return (*(f"</{tag}>" for tag in grammar.tools), f"</{Tag.ANSWER}>", f"<{Tag.OBSERVATION}")
