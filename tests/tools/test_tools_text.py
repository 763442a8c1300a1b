"""Folding, sentence borders and cutting."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm_core.tools import CUT_MARK, contains_words, cut, fold, sentences, words


def test_fold_drops_case_accents_and_extra_space() -> None:
    assert fold("  São   PAULO ") == "sao paulo"


def test_signs_stay_with_their_word() -> None:
    assert words("code +41, domain .ch. At 41 feet") == ["code", "+41", "domain", ".ch", "at", "41", "feet"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. Two.", ["One.", "Two."]),
        ("It serves St. Louis. It is old.", ["It serves St. Louis.", "It is old."]),
        ("O. R. Tambo Airport lies high. Yes", ["O. R. Tambo Airport lies high.", "Yes"]),
        ("It serves Saint George's. It is old.", ["It serves Saint George's.", "It is old."]),
        ("U.S. Virgin Islands has it. More", ["U.S. Virgin Islands has it.", "More"]),
        ("It has the domain .ch. It has more.", ["It has the domain .ch.", "It has more."]),
        ("First line\nsecond line\n\n", ["First line", "second line"]),
        ("", []),
    ],
)
def test_sentences(text: str, parts: list[str]) -> None:
    assert [text[start:end] for start, end in sentences(text)] == parts


@given(st.text())
def test_sentence_spans_are_ordered_and_lose_only_space(text: str) -> None:
    spans = sentences(text)
    assert all(start < end for start, end in spans)
    assert all(first[1] <= second[0] for first, second in pairwise(spans))
    kept = "".join(text[start:end] for start, end in spans)
    assert "".join(kept.split()) == "".join(text.split())


@given(st.text(), st.integers(min_value=0, max_value=80))
def test_cut_keeps_the_limit(text: str, limit: int) -> None:
    shorter, was_cut = cut(text, limit)
    assert len(shorter) <= max(limit, 0) or not was_cut
    assert was_cut == (len(text) > limit)
    if was_cut and limit > len(CUT_MARK):
        assert shorter.endswith(CUT_MARK)


def test_contains_words_needs_whole_words_in_order() -> None:
    assert contains_words(words("New York City"), words("york city"))
    assert not contains_words(words("Romania"), words("Oman"))
    assert not contains_words(words("a b"), [])
