"""The engine against a naive loop that recomputes everything for every token."""

import dataclasses

import pytest
import torch
from transformers import AutoModelForCausalLM

from afm_core.config import ConfigError, EngineConfig
from afm_core.engines.protocol import FinishReason, GenerationRequest
from afm_core.engines.transformers_engine import TransformersEngine

PROMPTS = [tuple(range(5, 5 + n)) for n in (1, 3, 17, 40, 2, 25)]


def engine_of(directory, slots=4, max_length=128):
    return TransformersEngine(EngineConfig(threads=1, slots=slots, max_length=max_length), directory, "v1")


@pytest.fixture(scope="module")
def naive(tiny_directory):
    return AutoModelForCausalLM.from_pretrained(tiny_directory, attn_implementation="eager")


@torch.inference_mode()
def naive_greedy(model, prompt, count, ends=()):
    """Greedy ids and their log-probabilities, one full forward pass a token."""
    ids, logprobs = list(prompt), []
    while len(logprobs) < count:
        row = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        ids.append(int(row.argmax()))
        logprobs.append(float(row.max()))
        if ids[-1] in ends:
            break
    return ids[len(prompt) :], logprobs


@torch.inference_mode()
def naive_logprobs(model, prompt, sampled, temperature=1.0):
    logits = model(torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(sampled)[:, None])[:, 0].tolist()


def run(engine, requests):
    for request in requests:
        engine.submit(request)
    done = {}
    while engine.pending():
        done.update({generation.request_id: generation for generation in engine.step()})
    return [done[request.id] for request in requests]


def request(name, prompt, count=12, **fields):
    return GenerationRequest(str(name), tuple(prompt), count, **fields)


def assert_equals_naive(generation, model, prompt, count, ends=(2,)):
    ids, logprobs = naive_greedy(model, prompt, count, ends)
    assert list(generation.token_ids) == ids
    assert list(generation.logprobs) == pytest.approx(logprobs, abs=1e-4)


def test_ragged_greedy_requests_equal_the_naive_loop_with_fewer_slots_than_requests(tiny_directory, naive):
    engine = engine_of(tiny_directory, slots=3)
    generations = run(engine, [request(n, prompt, 6 + n) for n, prompt in enumerate(PROMPTS)])
    for number, (prompt, generation) in enumerate(zip(PROMPTS, generations, strict=True)):
        assert_equals_naive(generation, naive, prompt, 6 + number)
        assert generation.finish in (FinishReason.LENGTH, FinishReason.END)


def test_greedy_equals_library_generate(tiny_directory, naive):
    (generation,) = run(engine_of(tiny_directory), [request("a", PROMPTS[2], 20)])
    expected = naive.generate(torch.tensor([PROMPTS[2]]), do_sample=False, max_new_tokens=20)[0, len(PROMPTS[2]) :]
    assert list(generation.token_ids) == expected.tolist()


def test_a_prompt_longer_than_one_prefill_step_is_read_in_chunks(tiny_directory, naive, monkeypatch):
    monkeypatch.setattr("afm_core.engines.transformers_engine.PREFILL_TOKENS", 7)
    prompts = [tuple((7 * i + n) % 300 + 3 for i in range(30 + n)) for n in range(4)]
    generations = run(engine_of(tiny_directory), [request(n, p, 5) for n, p in enumerate(prompts)])
    for prompt, generation in zip(prompts, generations, strict=True):
        assert_equals_naive(generation, naive, prompt, 5)


def test_a_session_prefills_only_its_new_ids_and_equals_the_naive_loop(tiny_directory, naive):
    engine = engine_of(tiny_directory, slots=3)
    ids = {name: list(prompt) for name, prompt in zip("abc", PROMPTS[1:4], strict=True)}
    for turn in range(3):
        requests = [request(f"{name}{turn}", ids[name], 5 + turn, session=name) for name in ids]
        before = {name: len(ids[name]) for name in ids}
        for name, generation in zip(ids, run(engine, requests), strict=True):
            assert_equals_naive(generation, naive, ids[name], 5 + turn)
            ids[name] += [*generation.token_ids, 40 + turn, 41, 42]
            row = engine._rows.of_session(name)
            assert len(row.ids) >= before[name]


def test_sessions_that_outnumber_slots_lose_their_cache_and_stay_correct(tiny_directory, naive):
    engine = engine_of(tiny_directory, slots=2)
    ids = [list(prompt) for prompt in PROMPTS[:5]]
    for turn in range(2):
        requests = [request(f"{n}-{turn}", ids[n], 4, session=str(n)) for n in range(5)]
        for n, generation in enumerate(run(engine, requests)):
            assert_equals_naive(generation, naive, ids[n], 4)
            ids[n] += [*generation.token_ids, 50]


def test_a_session_whose_prompt_does_not_extend_the_last_one_is_correct(tiny_directory, naive):
    engine = engine_of(tiny_directory)
    run(engine, [request("a", PROMPTS[3], 5, session="s")])
    changed = (*PROMPTS[3][:10], 99, *PROMPTS[3][11:])
    assert_equals_naive(run(engine, [request("b", changed, 5, session="s")])[0], naive, changed, 5)


def test_equal_beginnings_are_computed_once(tiny_directory, naive, monkeypatch):
    engine = engine_of(tiny_directory, slots=4)
    fed = []
    forward = engine._forward
    monkeypatch.setattr(engine, "_forward", lambda d, c: (fed.append(sum(n for _, n in c)), forward(d, c))[1])
    shared = tuple(range(10, 70))
    prompts = [(*shared, 100 + n, 101, 102) for n in range(6)]
    generations = run(engine, [request(n, prompt, 4) for n, prompt in enumerate(prompts)])
    for prompt, generation in zip(prompts, generations, strict=True):
        assert_equals_naive(generation, naive, prompt, 4)
    assert sum(fed) == len(shared) + 3 + 5 * 3


def test_sampled_logprobs_are_of_the_tempered_distribution(tiny_directory, naive):
    requests = [request(n, PROMPTS[n], 10, temperature=0.5 + n / 2, seed=n) for n in range(4)]
    for asked, generation in zip(requests, run(engine_of(tiny_directory), requests), strict=True):
        expected = naive_logprobs(naive, asked.prompt_ids, generation.token_ids, asked.temperature)
        assert list(generation.logprobs) == pytest.approx(expected, abs=1e-4)


def test_samples_do_not_depend_on_who_shares_the_batch(tiny_directory):
    asked = request("x", PROMPTS[2], 12, temperature=1.0, seed=7)
    (alone,) = run(engine_of(tiny_directory), [asked])
    crowd = [request(n, p, 9, temperature=1.3, seed=n) for n, p in enumerate(PROMPTS)]
    together = run(engine_of(tiny_directory, slots=3), [*crowd[:3], asked, *crowd[3:]])[3]
    assert together.token_ids == alone.token_ids


def test_the_same_calls_give_bit_identical_results(tiny_directory):
    requests = [request(n, p, 9, temperature=1.0, seed=n) for n, p in enumerate(PROMPTS)]
    assert run(engine_of(tiny_directory, slots=3), requests) == run(engine_of(tiny_directory, slots=3), requests)


def test_seeds_differ_and_repeat(tiny_directory):
    engine = engine_of(tiny_directory)
    first, second, again = run(
        engine, [request(n, PROMPTS[2], 12, temperature=1.0, seed=s) for n, s in enumerate((1, 2, 1))]
    )
    assert first.token_ids == again.token_ids != second.token_ids


def test_a_stop_string_inside_a_token_keeps_the_token_whole(tiny_directory, naive):
    engine = engine_of(tiny_directory)
    (free,) = run(engine, [request("free", PROMPTS[2], 12)])
    tokenizer = engine.tokenizer
    position, piece = next(
        (i, text)
        for i, token in enumerate(free.token_ids)
        if i > 2 and len(text := tokenizer.decode([token])) > 1 and text.isascii()
    )
    (stopped,) = run(engine, [request("stop", PROMPTS[2], 12, stop=("never there", piece[0]))])
    assert stopped.finish == FinishReason.STOP
    assert stopped.stop == piece[0]
    assert stopped.token_ids == free.token_ids[: len(stopped.token_ids)]
    assert len(stopped.token_ids) <= position + 1
    assert stopped.text == tokenizer.decode(stopped.token_ids)
    assert piece[0] in stopped.text


def test_the_end_of_turn_token_ends_and_is_kept(tiny_directory, naive, monkeypatch):
    engine = engine_of(tiny_directory)
    (free,) = run(engine, [request("free", PROMPTS[2], 8)])
    monkeypatch.setattr(engine, "_ends", frozenset({free.token_ids[4]}))
    (ended,) = run(engine, [request("end", PROMPTS[2], 8)])
    assert ended.finish == FinishReason.END
    first = free.token_ids.index(free.token_ids[4])
    assert ended.token_ids == free.token_ids[: first + 1]


def test_the_context_ends_a_generation(tiny_directory, naive):
    (generation,) = run(engine_of(tiny_directory, max_length=44), [request("a", PROMPTS[3], 50)])
    assert generation.finish == FinishReason.LENGTH
    assert_equals_naive(generation, naive, PROMPTS[3], 4)


def test_loading_weights_changes_results_and_empties_caches(tiny_directory, other_directory, naive):
    engine = engine_of(tiny_directory)
    (before,) = run(engine, [request("a", PROMPTS[3], 6, session="s")])
    engine.load_weights(other_directory, "v2")
    assert engine.policy_version == "v2"
    (after,) = run(engine, [request("b", PROMPTS[3], 6, session="s")])
    other = AutoModelForCausalLM.from_pretrained(other_directory)
    assert_equals_naive(after, other, PROMPTS[3], 6)
    assert after.token_ids != before.token_ids


def test_weights_cannot_be_loaded_while_requests_are_pending(tiny_directory, other_directory):
    engine = engine_of(tiny_directory)
    engine.submit(request("a", PROMPTS[0]))
    with pytest.raises(ValueError, match="pending"):
        engine.load_weights(other_directory, "v2")


def test_release_cancels_pending_requests_and_frees_the_row(tiny_directory, naive):
    engine = engine_of(tiny_directory, slots=1)
    engine.submit(request("a", PROMPTS[3], 30, session="s"))
    engine.step()
    engine.submit(request("b", PROMPTS[2], 5, session="t"))
    engine.release("s")
    assert engine.pending() == 1
    (generation,) = run(engine, [request("c", PROMPTS[1], 5)])
    assert_equals_naive(generation, naive, PROMPTS[1], 5)
    assert engine.pending() == 0


def test_an_empty_engine_steps_at_once(tiny_directory):
    assert engine_of(tiny_directory).step() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_ids": ()}, "empty"),
        ({"prompt_ids": tuple(range(128))}, "max_length"),
        ({"prompt_ids": (5, 100_000)}, "prompt ids"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": float("nan")}, "temperature"),
        ({"stop": ("",)}, "stop string"),
    ],
)
def test_impossible_requests_are_refused(tiny_directory, change, message):
    with pytest.raises(ValueError, match=message):
        engine_of(tiny_directory).submit(dataclasses.replace(request("a", PROMPTS[1]), **change))


def test_an_id_cannot_be_pending_twice(tiny_directory):
    engine = engine_of(tiny_directory)
    engine.submit(request("a", PROMPTS[0]))
    with pytest.raises(ValueError, match="already pending"):
        engine.submit(request("a", PROMPTS[1]))


def test_a_directory_without_a_model_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json"):
        engine_of(tmp_path)


def test_logits_that_are_not_finite_end_one_request_and_not_its_neighbours(tiny_directory, naive):
    engine = engine_of(tiny_directory)
    with torch.inference_mode():
        engine._model.get_input_embeddings().weight[290] = float("nan")
    sick, well = run(engine, [request("sick", (5, 290)), request("well", PROMPTS[2], 6)])
    assert sick.finish == FinishReason.ERROR
    assert "finite" in sick.error
    assert sick.token_ids == ()
    assert_equals_naive(well, naive, PROMPTS[2], 6)
    (after,) = run(engine, [request("after", (5, 6), 6)])
    assert_equals_naive(after, naive, (5, 6), 6)
