"""Which rollout is kept, and what failed runs teach; gold stays out of every request."""

import asyncio

import pytest
from team_script import Script, role_of

from afm_core.config import TeamConfig
from afm_core.data import AgentTask, Origin, Segment, Status, Tag, Trajectory, Usage
from afm_core.engines.backbone import CallStatus
from afm_core.teacher.team.choice import ChosenBy, Judge, choose
from afm_core.teacher.team.tips import Tip, mine, tips_for

TASK = AgentTask.create("What is the capital of Kenya?", ("Nairobi",))
JUDGED = TeamConfig(judge_model="judge")


def attempt(number, reward, answer="Nairobi", calls=1, violations=(), task=TASK, status=Status.COMPLETED):
    return Trajectory(
        id=f"{number:016d}",
        task_id=task.id,
        question=task.question,
        answer=answer,
        grammar="web",
        source="team:m",
        segments=(Segment(origin=Origin.TEACHER, tag=Tag.THINK, text=f"attempt {number}"),),
        status=status,
        reward=reward,
        usage=Usage(tool_calls=calls),
        violations=violations,
        provenance={"rollout": str(number)},
    )


def decide(trajectories, script=None, config=JUDGED):
    judge = Judge(script, config) if script else None
    return asyncio.run(choose(TASK.id, TASK.question, trajectories, judge))


def test_the_scorer_decides_where_one_stands_above_the_others():
    script = Script()
    choice = decide([attempt(0, 0.0, "Lima"), attempt(1, 1.0), attempt(2, None, None, status=Status.ABORTED)], script)
    assert (choice.by, choice.ranking) == (ChosenBy.SCORER, (1, 0, 2))
    assert not script.requests


def test_the_standing_is_right_then_unscored_then_wrong_then_unanswered():
    attempts = [
        attempt(0, None, None, status=Status.TIMEOUT),
        attempt(1, 0.0, "Lima"),
        attempt(2, None, status=Status.JUDGE_ERROR),
        attempt(3, 0.5),
        attempt(4, 1.0),
    ]
    assert decide(attempts).ranking == (4, 3, 2, 1, 0)


def test_of_right_rollouts_those_that_obey_the_grammar_come_first():
    script = Script()
    choice = decide([attempt(0, 1.0, violations=("missing_think",)), attempt(1, 1.0, calls=9)], script)
    assert (choice.by, choice.ranking) == (ChosenBy.SCORER, (1, 0))
    assert not script.requests


def test_a_judge_settles_a_tie_and_may_not_see_an_order_of_ours():
    shown = []

    def rank(request):
        text = request.messages[1].content
        shown.append([text.index(f"attempt {number}") for number in range(3)])
        places = sorted(range(3), key=lambda number: text.index(f"attempt {number}"))
        return {"reason": "clear", "best": places.index(2) + 1}

    script = Script(rank=rank)
    choice = decide([attempt(0, 1.0), attempt(1, 1.0), attempt(2, 1.0)], script)
    assert (choice.by, choice.chosen) == (ChosenBy.JUDGE, 2)
    assert choice.ranking == (2, 0, 1)
    assert [one.request for one in choice.exchanges] == script.requests
    assert script.requests[0].model == "judge"
    orders = set()
    for seed in range(8):
        decide([attempt(0, 1.0), attempt(1, 1.0), attempt(2, 1.0)], script, JUDGED.model_copy(update={"seed": seed}))
        orders.add(tuple(shown[-1]))
    assert len(orders) > 1


@pytest.mark.parametrize(
    "said", ["no idea", {"best": 0}, {"best": 9}, {"best": True}, CallStatus.SERVER_ERROR, CallStatus.TRUNCATED]
)
def test_a_judge_that_cannot_be_read_decides_nothing_and_the_record_says_so(said):
    script = Script(rank=lambda _: said)
    choice = decide([attempt(0, 1.0, calls=5), attempt(1, 1.0, calls=2), attempt(2, 1.0, calls=9)], script)
    assert (choice.by, choice.ranking) == (ChosenBy.ORDER, (1, 0, 2))
    assert len(choice.exchanges) == 2
    assert choice.problem


def test_ties_among_wrong_answers_are_not_worth_a_judge():
    script = Script()
    assert decide([attempt(0, 0.0), attempt(1, 0.0)], script).by is ChosenBy.ORDER
    assert decide([attempt(0, 1.0), attempt(1, 1.0)], script, TeamConfig()).by is ChosenBy.ORDER
    assert not script.requests


def test_nothing_left_is_no_choice():
    choice = decide([])
    assert (choice.by, choice.chosen) == (ChosenBy.NOTHING, None)


def learn(failed, script, known=(), **fields):
    tasks = {TASK.id: TASK, **{one.task_id: TASK for one in failed if one.task_id == TASK.id}}
    return asyncio.run(mine(failed, tasks, known, "m", script, TeamConfig(**fields)))


def test_a_failed_run_teaches_one_tip_a_task():
    script = Script()
    tips = learn([attempt(0, 0.0, "Lima"), attempt(1, 0.0, "Quito")], script)
    assert [tip.text for tip in tips] == ["Look for the capital first."]
    assert len(script.requests) == 1
    assert "Answer: Lima" in script.requests[0].messages[1].content
    assert learn([attempt(0, 0.0)], Script(), tips_per_shard=0) == []


def test_a_tip_that_is_known_or_tells_an_answer_is_not_kept():
    telling = learn([attempt(0, 0.0, "Lima")], Script(tip=lambda _: {"tip": "The capital is NAIROBI."}))
    assert [(tip.text, tip.problem) for tip in telling] == [("", "it names an accepted answer")]
    known = learn([attempt(0, 0.0, "Lima")], Script())
    again = learn([attempt(0, 0.0, "Lima")], Script(tip=lambda _: {"tip": "look for the CAPITAL first."}), known)
    assert [(tip.text, tip.problem) for tip in again] == [("", "it is known")]
    broken = learn([attempt(0, 0.0, "Lima")], Script(tip=lambda _: "what?"))
    assert broken[0].text == ""
    assert "cannot be read" in broken[0].problem


def test_tips_of_the_most_similar_questions_are_shown():
    (tip,) = learn([attempt(0, 0.0, "Lima")], Script())

    def of(question, text):
        return Tip(text=text, task_id="t", question=question, exchange=tip.exchange)

    store = [
        of("What is the capital of Peru?", "peru"),
        of("Which river is longer?", "river"),
        of("What is the time zone of Nakuru?", "zone"),
        of("Which is it?", ""),
    ]
    assert tips_for("Which river is wider?", store, 1) == ("river",)
    assert tips_for("the capital of Chad", store, 1) == ("peru",)
    assert tips_for("???", store, 2) == ("zone", "river")
    assert tips_for("anything", store, 0) == ()


def test_no_request_of_judge_or_miner_holds_gold():
    """The answers of a task reach neither: they are planted where a slip would show."""
    task = AgentTask.create("What is the capital of Kenya?", ("Zanzibargold",))
    script = Script()
    attempts = [attempt(n, None, "Nairobi", task=task, status=Status.JUDGE_ERROR) for n in range(2)]
    asyncio.run(choose(task.id, task.question, attempts, Judge(script, JUDGED)))
    asyncio.run(mine([attempt(0, 0.0, "Lima", task=task)], {task.id: task}, (), "m", script, TeamConfig()))
    assert {role_of(one) for one in script.requests} == {"rank", "tip"}
    assert not any("Zanzibargold" in str(one.body()) for one in script.requests)
