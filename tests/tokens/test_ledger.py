"""Token in, token out; masks derived from origins. Tests named trl, verl, ... are after faults of those systems."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_bpe import train

from afm_core.coa import render_trajectory
from afm_core.data import Origin, Segment, Status, Tag, Trajectory
from afm_core.tokens import (
    IGNORED_LABEL,
    Ledger,
    MaskError,
    chat_prompt_ids,
    check_masks,
    encode_text,
    end_of_turn_id,
    ledger_of,
    pack,
    render_colored_sample,
    special_tokens,
)

TOKENIZER = train()
END = end_of_turn_id(TOKENIZER)
PROMPT = chat_prompt_ids(TOKENIZER, "Who?")


def teacher(tag: Tag, text: str, mistake: bool = False) -> Segment:
    return Segment(origin=Origin.TEACHER, tag=tag, text=text, mistake=mistake)


def tool(text: str) -> Segment:
    return Segment(origin=Origin.TOOL, tag=Tag.OBSERVATION, text=text)


def sampled(text: str, ids: list[int]) -> Segment:
    return Segment(origin=Origin.SAMPLED, text=text, token_ids=tuple(ids), logprobs=(-0.5,) * len(ids))


def trajectory_of(*segments: Segment, status: Status = Status.COMPLETED) -> Trajectory:
    return Trajectory(
        id="t", task_id="t", question="Who?", grammar="web", source="test", segments=segments, status=status
    )


DEMONSTRATION = trajectory_of(
    teacher(Tag.THINK, "hello"),
    teacher(Tag.WEB_SEARCH, "wrong", mistake=True),
    tool("hello </observation><|im_end|>"),
    teacher(Tag.ANSWER, "Oslo"),
)

segments = st.lists(
    st.one_of(
        st.builds(teacher, st.just(Tag.THINK), st.text("hello ><é", max_size=8), st.booleans()),
        st.builds(tool, st.text("hello ><\n", max_size=8)),
        st.builds(sampled, st.just("x"), st.lists(st.integers(0, 400), max_size=6)),
    ),
    min_size=1,
    max_size=6,
)


@given(segments, st.sampled_from([Status.COMPLETED, Status.TRUNCATED]), st.booleans())
@settings(deadline=None)
def test_arrays_have_one_length_and_the_mask_counts_learned_tokens(
    pieces: list[Segment], status: Status, train_mistakes: bool
) -> None:
    ledger = ledger_of(trajectory_of(*pieces, status=status), TOKENIZER, PROMPT)
    mask = ledger.mask(train_mistakes=train_mistakes)
    assert (
        len(ledger) == len(mask) == len(ledger.logprobs) == len(ledger.origins) == len(ledger.segments)
        == len(ledger.mistakes)
    )  # fmt: skip
    expected = sum(
        origin in (Origin.SAMPLED, Origin.TEACHER) and (train_mistakes or not mistake)
        for origin, mistake in zip(ledger.origins, ledger.mistakes, strict=True)
    )
    assert sum(mask) == expected
    assert all((value is not None) <= (origin is Origin.SAMPLED) for value, origin in
               zip(ledger.logprobs, ledger.origins, strict=True))  # fmt: skip
    assert ledger.ids[: len(PROMPT)] == PROMPT
    assert not any(mask[: len(PROMPT)])


@given(segments)
@settings(deadline=None)
def test_no_token_crosses_a_segment_and_tokens_map_back(pieces: list[Segment]) -> None:
    trajectory = trajectory_of(*pieces)
    ledger = ledger_of(trajectory, TOKENIZER, PROMPT)
    for index, segment in enumerate(trajectory.segments):
        ids = [id for id, place in zip(ledger.ids, ledger.segments, strict=True) if place == index]
        if segment.origin is Origin.SAMPLED:
            assert tuple(ids) == segment.token_ids
        else:
            text = render_trajectory(trajectory_of(segment))
            assert TOKENIZER.decode(ids, clean_up_tokenization_spaces=False) == text


def test_masks_follow_origins_mistakes_and_switches() -> None:
    ledger = ledger_of(DEMONSTRATION, TOKENIZER, PROMPT)

    def learned(**switches: bool) -> list[int]:
        mask = ledger.mask(**switches)
        return sorted({place for place, entry in zip(ledger.segments, mask, strict=True) if entry})

    assert learned() == [-1, 0, 3]
    assert learned(train_mistakes=True) == [-1, 0, 1, 3]
    assert learned(mask_observations=False) == [-1, 0, 2, 3]
    assert ledger.ids[-1] == END
    assert ledger.mask()[-1] == 1
    labels = ledger.labels()
    assert [label for label in labels if label != IGNORED_LABEL] == [
        id for id, entry in zip(ledger.ids, ledger.mask(), strict=True) if entry
    ]


def test_a_document_yields_no_special_token() -> None:
    ledger = ledger_of(DEMONSTRATION, TOKENIZER, PROMPT)
    ids = [id for id, origin in zip(ledger.ids, ledger.origins, strict=True) if origin is Origin.TOOL]
    assert special_tokens(TOKENIZER).keys().isdisjoint(ids)


@pytest.mark.parametrize("status", [Status.TRUNCATED, Status.BUDGET_EXHAUSTED])
def test_only_a_completed_trajectory_ends_its_turn(status: Status) -> None:
    assert ledger_of(DEMONSTRATION.model_copy(update={"status": status}), TOKENIZER, PROMPT).ids[-1] != END
    assert ledger_of(DEMONSTRATION, TOKENIZER, PROMPT, append_end_of_turn=False).ids[-1] != END


def test_a_sampled_end_of_turn_is_not_doubled() -> None:
    ledger = ledger_of(trajectory_of(sampled("x", [50, END])), TOKENIZER, PROMPT)
    assert ledger.ids[len(PROMPT) :] == [50, END]
    appended = ledger_of(trajectory_of(sampled("x", [50])), TOKENIZER, PROMPT)
    assert (appended.ids[-1], appended.origins[-1], appended.logprobs[-1]) == (END, Origin.SAMPLED, None)


def test_a_prompt_segments_ids_serve_when_none_are_given() -> None:
    prompt = Segment(origin=Origin.PROMPT, text="Who?", token_ids=tuple(PROMPT))
    trajectory = trajectory_of(prompt, teacher(Tag.ANSWER, "Oslo"))
    assert ledger_of(trajectory, TOKENIZER).ids == ledger_of(trajectory, TOKENIZER, PROMPT).ids
    with pytest.raises(ValueError, match="prompt_ids"):
        ledger_of(trajectory_of(Segment(origin=Origin.PROMPT, text="Who?")), TOKENIZER)


def test_trl5224_sampled_ids_are_trained_though_their_text_encodes_otherwise() -> None:
    he_llo = [*encode_text(TOKENIZER, "he"), *encode_text(TOKENIZER, "llo")]
    assert he_llo != encode_text(TOKENIZER, "hello")
    ledger = ledger_of(trajectory_of(sampled("hello", he_llo), tool("x"), sampled("hello", he_llo)), TOKENIZER, PROMPT)
    for index in (0, 2):
        assert [id for id, place in zip(ledger.ids, ledger.segments, strict=True) if place == index] == he_llo


def test_trl5224_sampled_text_without_ids_is_refused_not_encoded() -> None:
    with pytest.raises(ValueError, match="segment 0 is sampled but has no token ids"):
        ledger_of(trajectory_of(Segment(origin=Origin.SAMPLED, text="hello")), TOKENIZER, PROMPT)


def test_trl5144_lengths_agree_after_a_shorter_second_turn() -> None:
    ledger = ledger_of(
        trajectory_of(sampled("long", [50] * 9), tool(""), sampled("s", [51]), tool("o"), sampled("", [])),
        TOKENIZER, PROMPT, append_end_of_turn=False,
    )  # fmt: skip
    assert len(ledger.ids) == len(ledger.mask()) == len(ledger.logprobs)
    assert sum(ledger.mask()) == 10
    with pytest.raises(ValueError, match="2 token ids but 1 log-prob"):
        ledger.append(Origin.SAMPLED, [1, 2], [-1.0])
    assert len(ledger.ids) == len(ledger.mask())


def test_minimind850_special_tokens_in_a_sampled_turn_do_not_shift_the_observation() -> None:
    turn = [50, 1, END, 0, 51]
    ledger = ledger_of(trajectory_of(sampled("xy", turn), tool("o"), sampled("z", [52])), TOKENIZER, PROMPT)
    observation = encode_text(TOKENIZER, "<observation>o</observation>")
    start = len(PROMPT) + len(turn)
    assert ledger.ids[len(PROMPT) : start] == turn
    assert ledger.ids[start : start + len(observation)] == observation
    assert ledger.mask()[start - len(turn) : start + len(observation) + 1] == [1] * 5 + [0] * len(observation) + [1]


def test_megatronbridge3359_a_template_without_generation_marks_gives_no_all_ones_mask() -> None:
    assert "generation %" not in TOKENIZER.chat_template
    ledger = ledger_of(trajectory_of(teacher(Tag.ANSWER, "Oslo")), TOKENIZER, PROMPT)
    assert sum(ledger.mask()) == len(encode_text(TOKENIZER, "<answer>Oslo</answer>")) + 1


def test_nanochat582_packing_keeps_the_mask() -> None:
    ledgers = [ledger_of(DEMONSTRATION, TOKENIZER, PROMPT) for _ in range(2)]
    (group,) = pack([len(ledger) for ledger in ledgers], 10_000)
    row = Ledger()
    for index in group:
        row.extend(ledgers[index])
    assert row.labels() == ledgers[0].labels() + ledgers[1].labels()
    assert all(
        label == IGNORED_LABEL
        for label, origin in zip(row.labels(), row.origins, strict=True)
        if origin in (Origin.PROMPT, Origin.TOOL)
    )


def test_verl3287_a_one_token_answer_is_learned() -> None:
    ledger = ledger_of(trajectory_of(sampled("y", [77])), TOKENIZER, PROMPT)
    assert [id for id in ledger.labels() if id != IGNORED_LABEL] == [77, END]
    assert ledger.labels()[len(PROMPT)] == 77


def test_automodel3739_template_tokens_are_never_learned() -> None:
    inserted = Segment(origin=Origin.TEMPLATE, text="<think>\n\n</think>\n\n<|im_end|>")
    ledger = ledger_of(trajectory_of(inserted, teacher(Tag.ANSWER, "Oslo")), TOKENIZER, PROMPT)
    template = [entry for entry, place in zip(ledger.mask(), ledger.segments, strict=True) if place == 0]
    assert template
    assert not any(template)
    assert END in ledger.ids[len(PROMPT) :]


def rows(*origins: Origin) -> Ledger:
    ledger = Ledger()
    for number, origin in enumerate(origins):
        ledger.append(origin, [number])
    return ledger


@pytest.mark.parametrize(
    ("ledgers", "masks", "message"),
    [
        ([], None, "none of the 0 tokens"),
        ([rows(Origin.PROMPT, Origin.TOOL)], None, "none of the 2 tokens"),
        ([rows(Origin.TEACHER, Origin.TEACHER)], None, "all of the 2 tokens"),
        ([rows(Origin.PROMPT, Origin.TOOL, Origin.TEACHER)], [[0, 1, 1]], "token 1: a tool token"),
        ([rows(Origin.PROMPT, Origin.TEACHER)], [[1, 1]], "token 0: a prompt token"),
        ([rows(Origin.PROMPT, Origin.TEACHER)], [[1]], "2 tokens but a mask of 1"),
        ([rows(Origin.PROMPT, Origin.TEACHER)], [], "1 trajectories but 0 masks"),
    ],
)
def test_the_gate_refuses_masks_that_cannot_be_right(ledgers: list[Ledger], masks: Any, message: str) -> None:
    with pytest.raises(MaskError, match=message):
        check_masks(ledgers, masks)


def test_the_gate_passes_right_masks_and_tells_the_share() -> None:
    ledger = rows(Origin.PROMPT, Origin.TOOL, Origin.TEACHER, Origin.SAMPLED)
    assert check_masks([ledger]) == 0.5
    assert check_masks([ledger], [[0, 1, 1, 1]], mask_observations=False) == 0.75


def test_the_coloured_sample_shows_every_token() -> None:
    text = render_colored_sample(ledger_of(DEMONSTRATION, TOKENIZER, PROMPT), TOKENIZER)
    assert (
        "\x1b[32m<think>hello</think>\x1b[0m\x1b[33m<web_search>wrong</web_search>\x1b[0m\x1b[36m<observation>" in text
    )
    assert text.endswith("\x1b[32m<answer>Oslo</answer><|im_end|>\x1b[0m")
