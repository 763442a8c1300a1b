"""Reading agents' replies: strict about content, lenient about what stands around it; and the schemas that are sent."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm_core.config import GrammarName, Structure
from afm_core.data import Tag
from afm_core.engines.backbone import ChatReply
from afm_core.teacher.team.calls import turn_format
from afm_core.teacher.team.plan import Plan
from afm_core.teacher.team.replies import (
    CheckReply,
    PlanReply,
    RankReply,
    ReviewReply,
    RevisionReply,
    SuggestReply,
    SummaryReply,
    TipReply,
    TurnReply,
    UnreadableReply,
    read_reply,
    response_format,
    spoken,
)

PORTABLE = {"type", "properties", "required", "additionalProperties", "items", "enum", "anyOf", "$ref", "$defs"} | {
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
}
"""What strict servers take (and names of properties, which are looked at apart)."""


@pytest.mark.parametrize(
    "text",
    [
        '{"check": "fits", "score": 3}',
        'Sure!\n```json\n{"check": "fits", "score": 3}\n```\nDone.',
        '{"other": 1} {"check": "fits", "score": "3", "more": []}',
        '{{"check": "fits", "score": 3}',
    ],
)
def test_the_object_is_found_wherever_it_stands(text):
    assert read_reply(text, CheckReply) == CheckReply(check="fits", score=3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no JSON object"),
        ("[1]", "no JSON object"),
        ('{"check": "fits"', "not valid JSON"),
        ('{"check": "fits"}', "'score'"),
        ('{"check": "fits", "score": 5}', "'score'"),
        ('{"check": "fits", "score": true}', "'score'"),
        ('{"check": "fits", "score": 2.5}', "'score'"),
        ('{"check": " ", "score": 3}', "'check'"),
        ('{"check": null, "score": 3}', "'check'"),
        ("{" * 5000, "not valid JSON"),
    ],
)
def test_what_does_not_fit_is_told(text, told):
    with pytest.raises(UnreadableReply, match=told):
        read_reply(text, CheckReply)


@given(st.text() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(str))
def test_no_text_can_raise_anything_else(text):
    for form in (PlanReply, TurnReply, RankReply):
        with suppress(UnreadableReply):
            read_reply(text, form)


@pytest.mark.parametrize(
    ("subtasks", "told"),
    [
        ([], "subtasks"),
        ([{"id": "1", "goal": ""}], "goal"),
        ([{"id": "1", "goal": "a"}, {"id": 1, "goal": "b"}], "different ids"),
        ([{"id": "1", "goal": "a", "depends_on": ["2"]}], "not in the plan"),
        ([{"id": "1", "goal": "a", "depends_on": [2]}, {"id": "2", "goal": "b", "depends_on": ["1"]}], "circle"),
        ([{"id": "1", "goal": "a", "depends_on": ["1"]}], "circle"),
        ([{"id": str(n), "goal": "a"} for n in range(13)], "subtasks"),
    ],
)
def test_a_graph_that_is_no_plan_is_told(subtasks, told):
    with pytest.raises(UnreadableReply, match=told):
        read_reply(json.dumps({"subtasks": subtasks}), PlanReply)


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(*(st.sets(st.integers(0, max(k - 1, 0))) for k in range(n)))))
def test_a_plan_is_worked_through_whatever_its_graph(needs):
    subtasks = [
        {"id": str(number), "goal": f"g{number}", "depends_on": sorted(map(str, wanted - {number}))}
        for number, wanted in enumerate(needs)
    ]
    plan = Plan.model_validate({"subtasks": subtasks[::-1]})
    results = {}
    while ready := plan.ready(results):
        assert all(set(one.depends_on) <= results.keys() for one in ready)
        results |= {one.id: "found" for one in ready}
    assert len(results) == len(subtasks)
    order = [one.id for one in plan.order()]
    assert all(order.index(name) < order.index(one.id) for one in plan.subtasks for name in one.depends_on)


def test_a_number_may_be_an_answer():
    assert read_reply('{"answer": 42}', SuggestReply).answer == "42"


def test_a_reasoning_block_at_the_front_is_not_what_is_said():
    assert spoken(ChatReply(content='<think>{"a": 1}</think>\n{"summary": "x"}')) == '{"summary": "x"}'


FORMS = (PlanReply, RevisionReply, ReviewReply, SuggestReply, CheckReply, SummaryReply, TurnReply, RankReply, TipReply)


def nodes(schema, named=False):
    """Every (key, value) of a schema, names of properties left out."""
    for key, value in schema.items():
        if not named:
            yield key, value
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, dict):
                yield from nodes(child, named=key in {"properties", "$defs"} and not named)


@pytest.mark.parametrize("form", [one for one in FORMS if one is not TurnReply])
def test_schemas_keep_to_what_strict_servers_take(form):
    sent = response_format(form, Structure.JSON_SCHEMA)["json_schema"]
    assert sent["strict"] is True
    assert {key for key, _ in nodes(sent["schema"])} <= PORTABLE
    assert set(sent["schema"]["required"]) == set(form.model_fields)
    assert response_format(form, Structure.NONE) is None
    assert response_format(form, Structure.JSON_OBJECT) == {"type": "json_object"}


def test_the_schema_of_a_turn_holds_each_call_to_its_tools_arguments():
    tools = dict.fromkeys((Tag.WEB_SEARCH, Tag.CODE))
    schema = turn_format(tools, GrammarName.CODE, Structure.JSON_SCHEMA)["json_schema"]["schema"]
    assert {key for key, _ in nodes(schema)} <= PORTABLE
    search, code = schema["properties"]["calls"]["items"]["anyOf"]
    assert search["properties"]["tool"]["enum"] == ["web_search"]
    assert search["properties"]["arguments"]["required"] == ["thought", "remark", "query"]
    assert code["properties"]["arguments"]["required"] == ["thought", "remark", "code"]


def test_bounded_schemas_bound_every_text_and_list():
    for form in FORMS:
        found = list(nodes(response_format(form, Structure.BOUNDED)["json_schema"]["schema"]))
        kinds = [value for key, value in found if key == "type"]
        keys = [key for key, _ in found]
        assert keys.count("maxLength") == kinds.count("string") - keys.count("enum")
        assert keys.count("maxItems") == kinds.count("array")
