"""The HTTP engine over a scripted server."""

import json

import httpx
import pytest

from afm_core.config import ConfigError, EngineConfig, EngineKind
from afm_core.engines import FinishReason, GenerationRequest, open_engine
from afm_core.engines.openai_engine import OpenAIEngine

ASKED = GenerationRequest("r", (5, 6, 7), 10, stop=("</a>",), temperature=0.5, seed=3, session="s")
CONFIG = EngineConfig(kind=EngineKind.OPENAI, base_url="http://server/v1", model="m", max_length=64, slots=2)


def good(tokenizer, text="hi</a>", **fields):
    ids = tokenizer(text)["input_ids"]
    choice = {"token_ids": ids, "logprobs": {"token_logprobs": [-0.1] * len(ids)}, "text": "ignored"}
    return {"choices": [{**choice, "finish_reason": "stop", "stop_reason": "</a>", **fields}]}


@pytest.fixture
def ask(tiny_directory):
    """Ask with a list of replies; a reply is (status, body, headers), an exception, or a function of the tokenizer."""
    seen, waits = [], []

    def run(*replies, request=ASKED):
        left = list(replies)

        def handle(received):
            seen.append(json.loads(received.content))
            reply = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(reply, Exception):
                raise reply
            if callable(reply):
                return httpx.Response(200, json=reply(engine.tokenizer))
            return httpx.Response(reply[0], json=reply[1], headers=reply[2] if len(reply) > 2 else {})

        engine = OpenAIEngine(CONFIG, tiny_directory, "v1", httpx.MockTransport(handle), waits.append)
        engine.submit(request)
        finished = []
        while engine.pending():
            finished += engine.step()
        engine.close()
        return finished[0], seen, waits

    return run


def test_ids_and_logprobs_come_from_the_server_and_the_text_from_the_ids(ask):
    generation, seen, _ = ask(good)
    assert generation.text == "hi</a>"
    assert (generation.finish, generation.stop) == (FinishReason.STOP, "</a>")
    assert len(generation.logprobs) == len(generation.token_ids)
    assert seen[0]["prompt"] == [5, 6, 7]
    assert (seen[0]["seed"], seen[0]["temperature"], seen[0]["stop"]) == (3, 0.5, ["</a>"])


def test_length_and_end_of_turn(ask):
    assert ask(lambda t: good(t, finish_reason="length", stop_reason=None))[0].finish is FinishReason.LENGTH
    assert ask(lambda t: good(t, stop_reason=None))[0].finish is FinishReason.END


def test_text_without_ids_is_refused(ask):
    generation, _, _ = ask(lambda t: good(t, token_ids=None))
    assert generation.finish is FinishReason.ERROR
    assert "return_token_ids" in generation.error


def test_ids_without_logprobs_are_refused(ask):
    assert ask(lambda t: good(t, logprobs=None))[0].finish is FinishReason.ERROR


def test_rate_limits_wait_as_long_as_the_server_asks(ask):
    generation, seen, waits = ask((429, {}, {"retry-after": "7"}), (503, {}), httpx.ConnectError("away"), good)
    assert generation.finish is FinishReason.STOP
    assert len(seen) == 4
    assert waits[0] == 7.0
    assert len(waits) == 3


def test_a_server_that_stays_away_ends_the_request_with_its_error(ask):
    generation, seen, _ = ask(httpx.ConnectError("nobody there"))
    assert generation.finish is FinishReason.ERROR
    assert "nobody there" in generation.error
    assert len(seen) == 6


def test_a_refusal_is_not_tried_again(ask):
    generation, seen, _ = ask((400, {"error": "bad"}))
    assert generation.finish is FinishReason.ERROR
    assert "400" in generation.error
    assert len(seen) == 1


@pytest.mark.parametrize(
    "body",
    [{}, {"choices": []}, {"choices": [{"token_ids": ["x"]}]}, [1], {"choices": [{"token_ids": [1], "logprobs": [1]}]}],
)
def test_an_unreadable_reply_is_an_error_of_its_request(ask, body):
    assert ask((200, body))[0].finish is FinishReason.ERROR


def test_a_missing_address_is_a_configuration_error(tiny_directory):
    with pytest.raises(ConfigError, match="base_url"):
        open_engine(EngineConfig(kind=EngineKind.OPENAI), tiny_directory, "v")


def test_weights_cannot_be_loaded(tiny_directory):
    with pytest.raises(ConfigError, match="load weights"):
        open_engine(CONFIG, tiny_directory, "v").load_weights(tiny_directory, "w")
