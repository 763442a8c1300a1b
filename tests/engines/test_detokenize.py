"""Incremental decoding equals decoding at once, and stop strings are found wherever they end."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from afm_core.engines.detokenize import StopScanner, decode


@pytest.fixture(scope="module")
def tokenizer(tiny_directory):
    return AutoTokenizer.from_pretrained(tiny_directory)


@given(ids=st.lists(st.integers(0, 296), max_size=30))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_incremental_text_equals_the_whole_decoded_at_once(tokenizer, ids):
    scanner = StopScanner(tokenizer, ())
    for token_id in ids:
        scanner.push(token_id)
    assert scanner.text == decode(tokenizer, ids)


@given(text=st.text(alphabet="ab<>/é日", max_size=30), stop=st.text(alphabet="ab<>/é日", min_size=1, max_size=3))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_stop_string_is_reported_by_the_token_that_completes_it(tokenizer, text, stop):
    scanner = StopScanner(tokenizer, (stop,))
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        had = stop in scanner.text
        found = scanner.push(token_id)
        assert found == (stop if stop in scanner.text and not had else None)
        if found:
            return
    assert stop not in text


def test_the_stop_string_that_ends_first_wins(tokenizer):
    scanner = StopScanner(tokenizer, ("abcd", "bc", "b"))
    found = [scanner.push(token_id) for token_id in tokenizer.encode("xabcd", add_special_tokens=False)]
    assert next(stop for stop in found if stop) == "b"


def test_special_tokens_leave_no_text(tokenizer):
    scanner = StopScanner(tokenizer, ("<|im_end|>",))
    assert [scanner.push(token_id) for token_id in (0, 1, 2)] == [None, None, None]
    assert scanner.text == ""
