"""The solution teacher on a small world: it solves, it errs and recovers, and it fails openly."""

import hashlib

import pytest

from afm_core.coa import check_trajectory, render_trajectory
from afm_core.config import AgentConfig, GrammarName, TeacherConfig
from afm_core.data import AgentTask, Origin, SolutionStep, Status, Tag
from afm_core.teacher import (
    MistakeKind,
    check_clairvoyance,
    convert,
    demonstrate,
    demonstrate_all,
    few_shot_examples,
    held_out_components,
    segment_events,
    teacher_ceiling,
    training_components,
)
from afm_core.teacher.system import PlannedMistake, _Run, plan_mistake
from afm_core.tools import ToolResult, ToolStatus

FLAWLESS = TeacherConfig(mistake_rate=0.0)


def erring(task: AgentTask, kind: MistakeKind) -> TeacherConfig:
    """A configuration under which the task's run plans a mistake of that kind."""
    for seed in range(500):
        teacher = TeacherConfig(mistake_rate=1.0, seed=seed)
        if plan_mistake(task, teacher, GrammarName.WEB).kind == kind:
            return teacher
    raise AssertionError(kind)


def run_with(task, tools, mistake, agent=None):
    """Events of a run with exactly this mistake."""
    run = _Run.create(task, tools, mistake, agent or AgentConfig())
    answer = run.solve()
    return run, answer


class Broken:
    """A tool whose infrastructure is down, after `working` calls of a real one."""

    name = "broken"
    description = ""

    def __init__(self, tool, working=0):
        self.tool, self.left = tool, working

    def call(self, argument):
        self.left -= 1
        return self.tool.call(argument) if self.left >= 0 else ToolResult(ToolStatus.INFRA_ERROR, "down")


@pytest.mark.parametrize("name", ["chain_task", "single_task", "comparison_task"])
def test_a_flawless_run_is_right_valid_and_sees_before_it_says(name, request, tools):
    task = request.getfixturevalue(name)
    trajectory = convert(demonstrate(task, tools, FLAWLESS, AgentConfig()), task)
    assert (trajectory.status, trajectory.reward) == (Status.COMPLETED, 1.0)
    assert check_trajectory(trajectory) == []
    assert check_clairvoyance(trajectory, task) == []
    assert not any(segment.mistake for segment in trajectory.segments)


def test_a_chain_copies_each_value_and_names_the_next_goal(chain_task, tools):
    trajectory = convert(demonstrate(chain_task, tools, FLAWLESS, AgentConfig()))
    thoughts = [segment.text for segment in trajectory.segments if segment.tag == Tag.THINK]
    assert thoughts == [
        "What is asked?",
        "currency of country of Mombasa",
        "currency of Kenya",
        "Kenyan shilling. Done.",
    ]
    plans = [segment.text for segment in trajectory.segments if segment.tag == Tag.PLAN]
    assert plans == ["currency of country of city of Moi Airport"]
    queries = [segment.text for segment in trajectory.segments if segment.tag == Tag.WEB_SEARCH]
    assert queries == ["Moi Airport city", "Mombasa country", "Kenya currency"]


def test_a_comparison_states_both_values_and_the_winner(comparison_task, tools):
    text = render_trajectory(convert(demonstrate(comparison_task, tools, FLAWLESS, AgentConfig())))
    assert "<think>Mombasa 1208333, Nairobi 4397073. Larger: Nairobi. Done.</think>" in text


def test_a_value_no_result_line_states_is_read_on_the_page(tools, documents):
    task = AgentTask.create(
        "In which country is Eldoret?",
        ("Kenya",),
        solution=(SolutionStep(relation="time", subject="Eldoret", value="Kenya"),),
    )
    events = demonstrate(task, tools, FLAWLESS, AgentConfig()).events
    assert [event.kind for event in events[:3]] == [Tag.PLAN, Tag.WEB_SEARCH, Tag.CRAWL_PAGE]
    assert events[2].argument == "Eldoret"


@pytest.mark.parametrize(
    ("kind", "step", "after"),
    [
        (MistakeKind.WRONG_QUERY, 1, [Tag.OBSERVATION, Tag.THINK, Tag.REFLECTION, Tag.CRAWL_PAGE]),
        (MistakeKind.WRONG_PAGE, 1, [Tag.OBSERVATION, Tag.THINK, Tag.REFLECTION, Tag.PLAN]),
        (MistakeKind.PREMATURE_ANSWER, 1, [Tag.DOUBLE_CHECK, Tag.PLAN, Tag.WEB_SEARCH]),
    ],
)
def test_a_mistake_is_marked_and_only_its_recovery_is_trained(kind, step, after, chain_task, tools):
    run, answer = run_with(chain_task, tools, PlannedMistake(kind, step, 0.0))
    recording = demonstrate(chain_task, tools, FLAWLESS, AgentConfig()).model_copy(
        update={"events": tuple(run.journal.events), "answer": answer, "mistake": run.made}
    )
    trajectory = convert(recording, chain_task)
    assert run.made == kind
    assert trajectory.reward == 1.0
    assert check_trajectory(trajectory) == []
    assert check_clairvoyance(trajectory, chain_task) == []
    marked = [number for number, segment in enumerate(trajectory.segments) if segment.mistake]
    assert len(marked) == 2
    assert trajectory.segments[marked[0]].tag == Tag.THINK
    following = [segment.tag for segment in trajectory.segments[marked[-1] + 1 :]]
    assert following[: len(after)] == after
    assert all(segment.origin == Origin.TEACHER for segment in trajectory.segments if segment.mistake)


def test_a_wrong_query_that_shows_no_page_of_the_subject_is_mended_by_a_better_query(chain_task, tools):
    class FindsNothingFirst(Broken):
        def call(self, argument):
            self.left -= 1
            return ToolResult(ToolStatus.NOT_FOUND, "No results.") if self.left >= 0 else self.tool.call(argument)

    blind = {**tools, Tag.WEB_SEARCH: FindsNothingFirst(tools[Tag.WEB_SEARCH], working=1)}
    run, _ = run_with(chain_task, blind, PlannedMistake(MistakeKind.WRONG_QUERY, 0, 0.99))
    first, second = (event for event in run.journal.events[:4] if event.kind == Tag.WEB_SEARCH)
    assert (first.argument, second.argument) == ("Moi city", "Moi Airport city")
    assert (first.mistake, second.mistake) == (True, False)


def test_mistakes_come_at_the_set_rate_and_are_the_same_every_time(chain_task, tools):
    assert plan_mistake(chain_task, FLAWLESS, GrammarName.WEB).kind == MistakeKind.NONE
    kinds = {
        plan_mistake(chain_task, TeacherConfig(mistake_rate=1.0, seed=seed), GrammarName.WEB).kind for seed in range(60)
    }
    assert kinds == {MistakeKind.WRONG_QUERY, MistakeKind.WRONG_PAGE, MistakeKind.PREMATURE_ANSWER}
    teacher = erring(chain_task, MistakeKind.WRONG_PAGE)
    first = demonstrate(chain_task, tools, teacher, AgentConfig())
    assert first == demonstrate(chain_task, tools, teacher, AgentConfig())
    assert first.mistake == MistakeKind.WRONG_PAGE


def test_no_intermediate_value_is_suggested_in_a_comparison(comparison_task):
    for seed in range(60):
        planned = plan_mistake(comparison_task, TeacherConfig(mistake_rate=1.0, seed=seed), GrammarName.WEB)
        assert planned.kind != MistakeKind.PREMATURE_ANSWER


def test_the_encyclopedia_profile_has_no_checked_answer(chain_task, documents, wiki_agent, tmp_path):
    from afm_core.tools import build_tools

    tools = build_tools(wiki_agent, documents, tmp_path, None)
    for seed in range(8):
        recording = demonstrate(chain_task, tools, TeacherConfig(mistake_rate=1.0, seed=seed), wiki_agent)
        trajectory = convert(recording, chain_task)
        assert trajectory.reward == 1.0
        assert check_trajectory(trajectory) == []


def test_a_value_that_is_nowhere_fails_the_run_with_its_reason(tools):
    task = AgentTask.create(
        "What is the capital of Kenya?",
        ("Mombasa",),
        solution=(SolutionStep(relation="capital", subject="Kenya", value="Atlantis"),),
    )
    trajectory = convert(demonstrate(task, tools, FLAWLESS, AgentConfig()), task)
    assert (trajectory.status, trajectory.reward, trajectory.answer) == (Status.BUDGET_EXHAUSTED, 0.0, None)
    assert "capital of Kenya" in trajectory.provenance["failure"]


def test_a_broken_tool_is_no_wrong_answer(chain_task, tools):
    broken = {**tools, Tag.WEB_SEARCH: Broken(tools[Tag.WEB_SEARCH], working=1)}
    trajectory = convert(demonstrate(chain_task, broken, FLAWLESS, AgentConfig()), chain_task)
    assert (trajectory.status, trajectory.reward) == (Status.TOOL_ERROR, None)


def test_the_budget_of_tool_calls_holds(chain_task, tools):
    agent = AgentConfig.model_validate({"budget": {"tool_calls": 2}})
    recording = demonstrate(chain_task, tools, FLAWLESS, agent)
    assert recording.status == Status.BUDGET_EXHAUSTED
    assert sum(event.tool is not None for event in recording.events) == 2


def test_a_task_without_solution_path_is_refused(tools):
    with pytest.raises(ValueError, match="solution path"):
        demonstrate(AgentTask.create("Who?", ("me",)), tools, FLAWLESS, AgentConfig())


def test_an_agent_without_search_is_refused(single_task):
    with pytest.raises(ValueError, match="searches"):
        demonstrate(single_task, {}, FLAWLESS, AgentConfig())


def test_every_segment_leads_back_to_its_event(chain_task, tools):
    recording = demonstrate(chain_task, tools, erring(chain_task, MistakeKind.WRONG_PAGE), AgentConfig())
    trajectory = convert(recording)
    events = {event.id: event for event in recording.events}
    for segment, identifier in zip(trajectory.segments, segment_events(trajectory), strict=True):
        event = events[identifier]
        assert segment.text in {event.thought, event.content, event.observation}
    parents = [event.parent for event in recording.events]
    assert parents == [None, *(event.id for event in recording.events[:-1])]


def test_concurrent_runs_keep_the_order_of_tasks(chain_task, single_task, comparison_task, tools):
    tasks = [chain_task, single_task, comparison_task] * 5
    recordings = demonstrate_all(tasks, tools, FLAWLESS, AgentConfig())
    assert [one.task_id for one in recordings] == [task.id for task in tasks]


def test_the_ceiling_is_flawless_and_leaves_out_what_cannot_be_taught(chain_task, held_out_task, tools):
    tasks = [chain_task, AgentTask.create("Who?", ("me",)), held_out_task]
    found = teacher_ceiling(tasks, tools, TeacherConfig(mistake_rate=1.0), AgentConfig())
    assert [one.task_id for one in found] == [chain_task.id, held_out_task.id]
    assert all(one.reward == 1.0 and one.provenance["mistake"] == "none" for one in found)


def test_training_sees_no_component_of_a_held_out_task(documents, chain_task, held_out_task):
    assert training_components(documents, [chain_task, held_out_task]) == {"kenya"}


def test_a_document_that_a_held_out_task_rests_on_holds_its_component_out(documents, held_out_task):
    misnamed = held_out_task.model_copy(update={"component": "elsewhere"})
    assert "peru" in held_out_components(documents, [misnamed])


def test_few_shot_examples_are_flawless_short_and_diverse(chain_task, single_task, comparison_task, tools):
    tasks = [chain_task, single_task, comparison_task]
    flawless = teacher_ceiling(tasks, tools, FLAWLESS, AgentConfig())
    teacher = erring(single_task, MistakeKind.WRONG_PAGE)
    flawed = convert(demonstrate(single_task, tools, teacher, AgentConfig()), single_task)
    chosen = few_shot_examples([flawed, *reversed(flawless)], 2)
    assert [one.usage.tool_calls for one in chosen] == [1, 2]
    assert few_shot_examples([*flawless, flawed], 2) == chosen
    assert len(few_shot_examples(flawless, 9)) == 3


def test_its_output_is_byte_for_byte_what_it_always_was(tools, chain_task, single_task, comparison_task):
    """The digest of demonstrations and events of a fixed world: whatever is done to other teachers, these stay."""
    tasks = [chain_task, single_task, comparison_task]
    content = hashlib.sha256()
    for seed in range(4):
        recordings = demonstrate_all(tasks, tools, TeacherConfig(mistake_rate=0.7, seed=seed), AgentConfig())
        for task, recording in zip(tasks, recordings, strict=True):
            content.update(recording.model_dump_json().encode() + convert(recording, task).model_dump_json().encode())
    assert content.hexdigest() == "112ec83f8b05cd96c953903ca6d694090c966efa5df7c2c3511e0b878b2fa266"
