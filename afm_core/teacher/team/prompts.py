"""What the agents are told, in our own words. A question, a plan, notes and tips are all that is ever filled in."""

from collections.abc import Mapping, Sequence

from afm_core.config import GrammarName
from afm_core.data import Tag
from afm_core.tools.protocol import Tool

_ANSWER_FORM = {
    GrammarName.MHQA: "as short as possible: a name, a number, a date; several answers divided by |",
    GrammarName.WEB: "as short as possible: a name, a number, a date",
    GrammarName.MULTI_TOOL: "as short as possible: a name, a number, a date",
    GrammarName.CODE: "a mathematical answer as \\boxed{...}, a program as one ```py block",
}

_JSON = "Reply with one JSON object and nothing else, in this form:"

_PLAN_FORM = (
    '{"thought": "why this plan", "facts": ["what the question itself gives"], "subtasks": '
    '[{"id": "1", "goal": "one thing to find out", "depends_on": []}]}'
)

_REVISION_FORM = (
    '{"assessment": "what was achieved and what was not", "grade": "good, fair or poor", "thought": "why this plan", '
    '"facts": ["what is known by now"], "subtasks": [what is still to be done, in the form of the first plan; empty if '
    "nothing is]}"
)


def tool_lines(tools: Mapping[Tag, Tool]) -> str:
    """The tools, a line each."""
    return "\n".join(f"- {tag}: {tool.description}" for tag, tool in tools.items())


def planner(tools: Mapping[Tag, Tool], tips: Sequence[str]) -> str:
    """The planner's instruction."""
    lessons = "\nLessons of runs that failed:\n" + "\n".join(f"- {tip}" for tip in tips) if tips else ""
    return (
        "You plan the work of a team that answers a question with these tools:\n"
        f"{tool_lines(tools)}\n"
        "Split the question into one to eight sub-tasks. Each finds out or computes one thing and names the sub-tasks "
        "whose results it needs; those that need none of each other are worked on at the same time. A fact is what the "
        f"question states; guess none.{lessons}\n{_JSON}\n{_PLAN_FORM}"
    )


def reviser(tools: Mapping[Tag, Tool]) -> str:
    """The planner's instruction when a plan is looked at again."""
    return (
        "You plan the work of a team that answers a question with these tools:\n"
        f"{tool_lines(tools)}\n"
        "The plan below was worked on. Judge what came of it, then say what is still to be done: other ways to what "
        "was not found, nothing that is known already. Grade the progress poor only if the plan itself was wrong.\n"
        f"{_JSON}\n{_REVISION_FORM}"
    )


def executor(tools: Mapping[Tag, Tool], grammar: GrammarName, arguments: str = "") -> str:
    """The executor's instruction. `arguments` tells the tools' arguments where the server does not (JSON protocol)."""
    code = grammar is GrammarName.CODE
    together = "Call one tool at a time." if code else "Calls that need nothing of each other go into one turn."
    form = (
        "When you know the result, reply with it in one or two sentences and without a call."
        if not arguments
        else (
            f"{_JSON}\n"
            '{"thought": "why", "calls": [{"tool": "name", "arguments": {...}}], "report": ""}\n'
            "When you know the result, leave calls empty and put it into report, in one or two sentences."
        )
    )
    told = f"\nArguments of the tools:\n{arguments}" if arguments else ""
    return (
        "You work on one sub-task for a team, with these tools:\n"
        f"{tool_lines(tools)}{told}\n"
        f"Say in one sentence why before you call. {together} Report only what a tool told you; if it cannot be found, "
        f"report that. {form}"
    )


CRITIC = (
    "You judge how well a colleague did a sub-task. Score from 0 (useless) to 10 (done, and every word of the report "
    "stands in a tool's result). A report that is not supported scores 3 at most. Grade poor only if another way is "
    f"needed altogether, fair if a better call would do.\n{_JSON}\n"
    '{"score": 0, "grade": "good, fair or poor", "assessment": "what is right and wrong, in one or two sentences", '
    '"lesson": "what to do differently, empty if nothing"}'
)

SUMMARISER = (
    "You keep a team's notes short. Say in less than 150 words what they hold: every name, number and date that was "
    f'found and where, and what could not be found. Add nothing.\n{_JSON}\n{{"summary": "..."}}'
)


def answerer(grammar: GrammarName) -> str:
    """The answerer's instruction."""
    return (
        "You answer a question from a team's notes, and from nothing else. Give the answer "
        f'{_ANSWER_FORM[grammar]}.\n{_JSON}\n{{"thought": "how it follows from the notes", "answer": "..."}}'
    )


VERIFIER = (
    "You check a proposed answer against a team's notes: does it answer what was asked, does every step stand in the "
    "notes, is it in the form that was asked for? Score 1 (wrong), 2 (doubtful: something is missing), 3 (likely) or 4 "
    f'(certain).\n{_JSON}\n{{"check": "what supports or contradicts it, in one or two sentences", "score": 1}}'
)


def question_and_notes(question: str, notes: str, *more: str) -> str:
    """What most agents are shown."""
    return "\n\n".join([f"Question: {question}", f"Notes:\n{notes}", *more])
