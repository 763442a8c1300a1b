"""A team at work: the plan's graph, tools at once, reflection, revision, memory, budgets, and what it may see."""

import asyncio
import json
import threading

import pytest
from team_script import Script, goal_of
from virtual_time import run_virtually

from afm_core.config import AgentConfig, Budget, GrammarName, TeamConfig, ToolProtocol
from afm_core.data import Status, Tag
from afm_core.engines.backbone import BackboneGone, CallStatus, ChatRole
from afm_core.teacher.team import Activation, Question, Rollout, Setting, TeamRole, solve
from afm_core.tools.protocol import ToolResult, ToolStatus

QUESTION = Question(task_id="t1", text="What is the capital of Kenya?", grammar=GrammarName.WEB)


@pytest.fixture
def play(tools):
    """Play one rollout on a script; returns its recording."""

    def run(script, tools=tools, agent=None, question=QUESTION, tips=(), **fields):
        setting = Setting(script, TeamConfig(**fields), agent or AgentConfig(), tools)
        recording, _ = run_virtually(solve(question, setting, Rollout(0, "m", seed=5, tips=tips)))
        return recording

    return run


def steps(recording):
    return [(one.role.value, one.activation.value) for one in recording.events]


def plan_of(*subtasks):
    return lambda request: {
        "subtasks": [{"id": name, "goal": goal, "depends_on": deps} for name, goal, deps in subtasks]
    }


def test_a_question_goes_from_plan_to_checked_answer(play):
    recording = play(Script())
    assert (recording.status, recording.answer, recording.failure) == (Status.COMPLETED, "Nairobi", "")
    assert steps(recording) == [
        ("planner", "plan"),
        ("executor", "turn"),
        ("executor", "call"),
        ("executor", "turn"),
        ("critic", "review"),
        ("answerer", "suggest"),
        ("verifier", "check"),
    ]
    call = recording.events[2].call
    assert (call.tag, call.argument, call.thought) == (Tag.WEB_SEARCH, "capital of Kenya", "Look it up.")
    assert (call.status, "Nairobi" in call.observation) == (ToolStatus.OK, True)


def test_every_event_holds_its_request_its_seed_and_its_parent(play):
    script = Script()
    recording = play(script)
    sent = [one.exchange.request for one in recording.events if one.exchange]
    assert sent == script.requests
    assert len({one.sampling.seed for one in sent}) == len(sent)
    ids = [one.id for one in recording.events]
    assert len(set(ids)) == len(ids)
    assert recording.events[0].parent is None
    assert [one.parent for one in recording.events[1:]] == ids[:-1]
    assert play(Script()).without_times() == recording.without_times()


def test_parallel_sub_tasks_run_at_once_and_stand_in_the_plans_order(play):
    """Two need nothing of each other: their tools wait for each other, which works only if they run together."""
    together = threading.Barrier(2, timeout=10)

    class Waiting:
        name, description = "search_local", "search"

        def call(self, argument):
            together.wait()
            return ToolResult(ToolStatus.OK, f"found {argument}")

    plan = plan_of(("b", "find the second", []), ("a", "find the first", []))
    recording = play(Script(plan=plan), tools={Tag.WEB_SEARCH: Waiting()})
    calls = [one.call.argument for one in recording.events if one.call]
    assert calls == ["second", "first"]
    assert [one.subtask for one in recording.events if one.activation is Activation.REVIEW] == ["b", "a"]


def test_a_sub_task_waits_for_what_it_needs_and_sees_its_result(play):
    script = Script(plan=plan_of(("2", "find the time zone of Eldoret", ["1"]), ("1", "find the capital of Kenya", [])))
    recording = play(script)
    turns = [one for one in script.requests if one.messages[0].content.startswith("You work on")]
    assert [goal_of(one) for one in turns] == ["find the capital of Kenya"] * 2 + ["find the time zone of Eldoret"] * 2
    assert "Nairobi" in turns[2].messages[1].content
    assert recording.status is Status.COMPLETED


def test_calls_of_one_turn_are_made_at_once(play):
    together = threading.Barrier(3, timeout=10)

    class Waiting:
        name, description = "search_local", "search"

        def call(self, argument):
            together.wait()
            return ToolResult(ToolStatus.OK, f"found {argument}")

    def turn(request):
        if any(one.role is ChatRole.TOOL for one in request.messages):
            return "All found."
        return [("web_search", {"query": name, "thought": "t"}) for name in "abc"]

    script = Script(turn=turn)
    recording = play(script, tools={Tag.WEB_SEARCH: Waiting()})
    assert [one.call.argument for one in recording.events if one.call] == ["a", "b", "c"]
    last = script.requests[2].messages
    assert [one.content for one in last if one.role is ChatRole.TOOL] == ["found a", "found b", "found c"]
    assert [one.id for one in last[2].tool_calls] == [one.tool_call_id for one in last[3:]]


def test_the_code_profile_makes_one_call_at_a_time(play):
    class Python:
        name, description = "python", "runs"

        def call(self, argument):
            return ToolResult(ToolStatus.OK, "4")

    def turn(request):
        if any(one.role is ChatRole.TOOL for one in request.messages):
            return "It is 4."
        return [("code", {"code": "print(2 + 2)", "thought": "t", "remark": "nothing yet"})] * 2

    agent = AgentConfig(grammar=GrammarName.CODE, tools={"code": "python"})
    question = QUESTION.model_copy(update={"grammar": GrammarName.CODE})
    recording = play(Script(turn=turn), tools={Tag.CODE: Python()}, agent=agent, question=question)
    (call,) = [one.call for one in recording.events if one.call]
    assert call.argument == "\n```py\nprint(2 + 2)\n```\n"
    assert call.remark == "nothing yet"


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("web_search", "{", "not valid JSON"),
        ("web_search", "[1, 2]", "one JSON object"),
        ("web_search", "{}", "takes query"),
        ("web_search", '{"query": ""}', "takes query"),
        ("web_search", '{"query": 3}', "takes query"),
        ("web_search", '{"query": "a", "num": 3}', "takes query"),
        ("launch", '{"query": "a"}', "no tool 'launch'"),
    ],
)
def test_a_malformed_call_is_answered_and_never_dispatched(play, name, arguments, told):
    class Never:
        name, description = "search_local", "search"

        def call(self, argument):
            raise AssertionError("dispatched")

    def turn(request):
        return "Given up." if request.messages[-1].role is ChatRole.TOOL else [(name, arguments)]

    recording = play(Script(turn=turn), tools={Tag.WEB_SEARCH: Never()})
    (call,) = [one.call for one in recording.events if one.call]
    assert (call.status, call.argument) == (ToolStatus.BAD_ARGUMENTS, None)
    assert told in call.observation
    assert recording.status is Status.COMPLETED


def test_a_low_score_makes_it_reflect_and_try_again_with_the_lesson(play):
    scores = iter([2, 8])
    script = Script(
        review=lambda _: {
            "score": next(scores),
            "grade": "fair",
            "assessment": "Not supported.",
            "lesson": "Say Nairobi.",
        }
    )
    recording = play(script)
    reviews = [one for one in recording.events if one.activation is Activation.REVIEW]
    assert [(one.attempt, one.data["score"]) for one in reviews] == [(1, 2), (2, 8)]
    second = next(one for one in recording.events if one.attempt == 2)
    assert "Say Nairobi." in second.exchange.request.messages[1].content
    assert second.parent == reviews[0].id
    assert script.counts["revise"] == 0


def test_a_poor_grade_skips_other_attempts_and_makes_a_new_plan(play):
    scores = iter([1, 9])
    script = Script(
        review=lambda _: {"score": next(scores), "grade": "poor", "assessment": "Wrong way.", "lesson": "Another way."}
    )
    recording = play(script, subtask_attempts=3)
    assert [one.activation for one in recording.events if one.role is TeamRole.PLANNER] == ["plan", "revise"]
    shown = next(one for one in script.requests if "The plan below" in one.messages[0].content).messages[1].content
    assert "NOT FOUND" in shown
    assert "Failed: find the capital of Kenya" in shown
    assert recording.status is Status.COMPLETED


def test_the_plan_is_revised_every_so_many_sub_tasks_while_something_is_left(play):
    chain = [(str(n), f"find the thing {n}", [str(n - 1)] if n else []) for n in range(5)]
    script = Script(
        plan=plan_of(*chain), revise=lambda _: {"assessment": "Fine.", "grade": "good", "subtasks": [], "facts": []}
    )
    recording = play(script, replan_every=2)
    assert script.counts["revise"] == 1
    assert script.counts["review"] == 2  # the revision left nothing to do
    assert recording.status is Status.COMPLETED


def test_a_rejected_answer_means_a_new_plan_until_revisions_are_used_up(play):
    doubtful = {"check": "A step is missing.", "score": 2}
    scores = iter([doubtful, {"check": "Now it is there.", "score": 3}])
    script = Script(check=lambda _: next(scores))
    assert play(script).answer == "Nairobi"
    assert script.counts["revise"] == 1
    recording = play(Script(check=lambda _: doubtful), revisions=1)
    assert (recording.status, recording.answer) == (Status.BUDGET_EXHAUSTED, None)
    assert "A step is missing." in recording.failure


def test_long_notes_are_folded_into_a_rolling_summary(play):
    chain = [(str(n), f"find the thing {n}", [str(n - 1)] if n else []) for n in range(4)]
    script = Script(plan=plan_of(*chain), turn=lambda request: f"{goal_of(request)}: " + "x" * 300)
    recording = play(script, memory_characters=700, memory_recent=1, replan_every=99)
    assert script.counts["summarise"] >= 1
    shown = next(one for one in script.requests if one.messages[0].content.startswith("You answer")).messages[1].content
    assert "All of it, briefly." in shown
    assert "find the thing 3" in shown
    assert "find the thing 0" not in shown
    assert any(one.role is TeamRole.SUMMARISER for one in recording.events)


def test_tips_are_shown_to_the_planner_alone(play):
    script = Script()
    recording = play(script, tips=("Beware of Nakuru.",))
    assert recording.tips == ("Beware of Nakuru.",)
    assert ["Beware of Nakuru." in one.messages[0].content for one in script.requests] == [True] + [False] * 5


def test_an_unreadable_reply_is_asked_for_again_with_what_was_wrong(play):
    replies = iter(["no idea", '{"check": "x", "score": true}', '```json\n{"check": "fits", "score": "4"}\n```'])
    script = Script(check=lambda _: next(replies))
    recording = play(script)
    checks = [one for one in recording.events if one.activation is Activation.CHECK]
    assert [one.data is not None for one in checks] == [False, False, True]
    assert "no JSON object" in checks[0].problem
    assert "score" in checks[1].problem
    assert "score" in checks[2].exchange.request.messages[-1].content
    assert [one.parent for one in checks[1:]] == [one.id for one in checks[:-1]]
    assert recording.status is Status.COMPLETED


@pytest.mark.parametrize("role", ["plan", "suggest", "check"])
def test_an_agent_of_the_main_line_that_stays_unreadable_ends_the_run(play, role):
    recording = play(Script(**{role: lambda _: "what?"}))
    assert (recording.status, recording.answer) == (Status.PARSE_ERROR, None)
    assert "in 3 askings" in recording.failure


def test_an_executor_that_stays_unreadable_costs_its_sub_task_only(play):
    plan = plan_of(("1", "find the lost", []), ("2", "find the capital of Kenya", []))
    ordinary = Script()

    def turn(request):
        return CallStatus.TRUNCATED if goal_of(request) == "find the lost" else ordinary.turn(request)

    recording = play(Script(plan=plan, turn=turn), revisions=0)
    assert recording.status is Status.COMPLETED
    suggest = next(one for one in recording.events if one.activation is Activation.SUGGEST)
    assert "find the lost: NOT FOUND" in suggest.exchange.request.messages[1].content


def test_calls_in_a_reply_that_was_cut_off_are_never_made(play):
    class Never:
        name, description = "search_local", "search"

        def call(self, argument):
            raise AssertionError("dispatched")

    half = (CallStatus.TRUNCATED, [("web_search", {"query": "Kenya", "thought": "t"})])
    recording = play(Script(turn=lambda _: half), tools={Tag.WEB_SEARCH: Never()}, revisions=0)
    assert not any(one.call for one in recording.events)


@pytest.mark.parametrize(
    ("status", "ends"),
    [
        (CallStatus.SERVER_ERROR, Status.ABORTED),
        (CallStatus.TIMEOUT, Status.ABORTED),
        (CallStatus.REFUSED, Status.ABORTED),
    ],
)
def test_no_usable_reply_ends_the_run_unscored_and_stands_in_the_record(play, status, ends):
    recording = play(Script(suggest=lambda _: status))
    assert recording.status is ends
    assert recording.events[-1].exchange.status is status
    assert "scripted failure" in recording.events[-1].problem


def test_an_outage_goes_through_to_the_stage(play):
    class Gone(Script):
        async def complete(self, request):
            raise BackboneGone("away")

    with pytest.raises(BackboneGone):
        play(Gone())


@pytest.mark.parametrize("status", [ToolStatus.INFRA_ERROR, ToolStatus.TIMEOUT, ToolStatus.RATE_LIMITED])
def test_a_tool_whose_infrastructure_fails_ends_the_run_unscored(play, status):
    class Broken:
        name, description = "search_local", "search"

        def call(self, argument):
            return ToolResult(status, "down")

    recording = play(Script(), tools={Tag.WEB_SEARCH: Broken()})
    assert (recording.status, recording.answer) == (Status.TOOL_ERROR, None)
    assert recording.events[-1].call.status is status


def test_a_tool_that_raises_is_an_infrastructure_failure(play):
    class Raising:
        name, description = "search_local", "search"

        def call(self, argument):
            raise RuntimeError("boom")

    recording = play(Script(), tools={Tag.WEB_SEARCH: Raising()})
    assert recording.status is Status.TOOL_ERROR
    assert "boom" in recording.failure


def test_tool_calls_beyond_the_budget_are_refused_and_the_team_goes_on(play):
    def turn(request):
        results = sum(one.role is ChatRole.TOOL for one in request.messages)
        return "Enough." if results == 3 else [("web_search", {"query": f"Kenya {results}", "thought": "t"})]

    recording = play(Script(turn=turn), agent=AgentConfig(budget=Budget(tool_calls=2)))
    statuses = [one.call.status for one in recording.events if one.call]
    assert statuses[2] is ToolStatus.REFUSED
    assert ToolStatus.REFUSED not in statuses[:2]
    assert recording.status is Status.COMPLETED


def test_turns_without_end_and_calls_without_end_are_bounded(play):
    forever = Script(turn=lambda request: [("web_search", {"query": f"Kenya {len(request.messages)}", "thought": "t"})])
    recording = play(forever, subtask_turns=3, subtask_attempts=2, revisions=0)
    assert forever.counts["turn"] == 6
    assert recording.status is Status.COMPLETED
    recording = play(Script(), model_calls=3)
    assert (recording.status, recording.answer) == (Status.BUDGET_EXHAUSTED, None)


def test_a_run_over_its_time_ends_with_what_was_recorded(play):
    class Slow(Script):
        async def complete(self, request):
            await asyncio.sleep(100)
            return await super().complete(request)

    recording = play(Slow(), seconds=250)
    assert recording.status is Status.TIMEOUT
    assert len([one for one in recording.events if one.exchange]) == 2


def test_the_json_protocol_needs_no_tool_calls_of_the_server(play):
    def turn(request):
        if "Result 1" in request.messages[-1].content:
            return {"thought": "", "calls": [], "report": "The capital is Nairobi."}
        call = {"tool": "web_search", "arguments": {"query": "capital of Kenya", "thought": "Look."}}
        return f"Well: {json.dumps({'thought': 'I look.', 'calls': [call], 'report': ''})}"

    script = Script(turn=turn)
    recording = play(script, tool_protocol=ToolProtocol.JSON)
    assert recording.status is Status.COMPLETED
    assert [one.call.argument for one in recording.events if one.call] == ["capital of Kenya"]
    assert not any(one.tools for one in script.requests)
    assert '"query"' in script.requests[1].messages[0].content
