"""The endpoint over a scripted engine: answers, streams, errors."""

import json

import pytest
from fastapi.testclient import TestClient

from afm_core.config import AgentConfig, Budget
from afm_core.data import Tag
from afm_core.rollout.live import LivePolicy
from afm_core.rollout.serve import _EXPECTED, _Request, create_app, question_of

AGENT = AgentConfig(budget=Budget(turn_tokens=400, total_tokens=4000))


@pytest.fixture
def client(engine_of, tool_of, good_script):
    engine = engine_of({"why?": good_script, "lost?": ["no tags at all"], "broken?": [RuntimeError("gone")]})
    with LivePolicy(engine, {Tag.WEB_SEARCH: tool_of({"query": "it is 42"})}, AGENT) as policy:
        with TestClient(create_app(policy, "afm")) as client:
            yield client


def ask(client, question, **fields):
    return client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": question}], **fields})


def events(response):
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_completion_is_one_whole_episode(client):
    body = ask(client, "why?").json()
    message = body["choices"][0]["message"]
    assert message["content"] == "42"
    assert "<observation>it is 42</observation>" in message["reasoning_content"]
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
    assert body["afm"] == {"status": "completed", "turns": 2, "tool_calls": 1, "violations": []}


def test_a_stream_holds_the_same_trace_and_answer(client):
    whole = ask(client, "why?").json()["choices"][0]["message"]
    chunks = events(ask(client, "why?", stream=True, stream_options={"include_usage": True}))
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == whole["reasoning_content"]
    assert "".join(delta.get("content", "") for delta in deltas) == "42"
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["prompt_tokens"] > 0


def test_equal_questions_at_once_do_not_collide(client):
    answers = [ask(client, "why?").json()["id"] for _ in range(3)]
    assert len(set(answers)) == 3


def test_a_policy_that_fails_is_an_empty_answer_with_its_status(client):
    body = ask(client, "lost?").json()
    assert body["choices"][0]["message"]["content"] == ""
    assert body["afm"]["status"] == "parse_error"


def test_a_token_limit_is_finish_reason_length(client):
    body = ask(client, "why?", max_tokens=10).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 10


def test_an_episode_that_failed_outside_the_policy_is_a_502(client):
    response = ask(client, "broken?")
    assert response.status_code == 502
    assert "gone" in response.json()["error"]["message"]
    assert "gone" in events(ask(client, "broken?", stream=True))[-1]["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "parameter", "told"),
    [
        ({"messages": []}, 400, "messages", "at least one; got []"),
        ({}, 400, "messages", "at least one; it is missing"),
        ([], 400, None, "a JSON object with `messages`"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "messages", "must be a user's text"),
        ({"messages": [{"role": "user", "content": " "}]}, 400, "messages", "must be a user's text"),
        (
            {"messages": [{"role": "user", "content": "x"}], "n": 2},
            400,
            "n",
            "expected 1 (one answer a request); got 2",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}], "temperature": -1},
            400,
            "temperature",
            "a number of at least 0; got -1",
        ),
        ({"messages": ["x" * 99]}, 400, "messages", '(objects), at least one; got "xxx'),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, 400, "max_tokens", "above 0; got 0"),
        ({"messages": [{"role": "user", "content": "x"}], "model": "other"}, 404, "model", "this server has 'afm'"),
    ],
)
def test_bad_requests_are_refused_as_openai_does(client, body, status, parameter, told):
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", parameter)
    assert told in error["message"]
    assert "pydantic" not in error["message"]
    assert "\n" not in error["message"]


def test_every_field_that_is_read_can_be_explained():
    assert set(_EXPECTED) == set(_Request.model_fields)


def test_null_is_a_field_left_out(client):
    assert ask(client, "why?", temperature=None, n=None, stream=None, max_tokens=None, model=None).status_code == 200


def test_a_body_that_is_no_json_is_refused(client):
    response = client.post("/v1/chat/completions", content=b"{")
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("the body is not valid JSON: ")


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/nope", 404), ("GET", "/v1/chat/completions", 405)])
def test_an_unknown_route_answers_in_the_same_form(client, method, path, status):
    response = client.request(method, path)
    assert response.status_code == status
    assert "POST /v1/chat/completions" in response.json()["error"]["message"]


def test_models_and_health(client):
    assert client.get("/v1/models").json()["data"][0]["id"] == "afm"
    assert client.get("/health").json()["status"] == "ok"


def test_an_engine_that_fails_answers_everybody_and_turns_health_red(engine_of, tool_of, good_script):
    engine = engine_of({"why?": good_script})

    def step():
        raise RuntimeError("out of memory")

    engine.step = step
    with (
        LivePolicy(engine, {Tag.WEB_SEARCH: tool_of()}, AGENT) as policy,
        TestClient(create_app(policy, "afm")) as client,
    ):
        first = ask(client, "why?")
        assert first.status_code == 502
        assert "out of memory" in first.json()["error"]["message"]
        assert client.get("/health").status_code == 503
        assert ask(client, "why?").status_code == 503


def test_the_question_holds_earlier_turns_and_no_system_message():
    messages = [
        {"role": "system", "content": "be nice"},
        {"role": "user", "content": "a?"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": [{"type": "text", "text": "c?"}]},
    ]
    assert question_of(messages) == "user: a?\nassistant: b\nc?"
