"""A trajectory made ready for the viewer: its elements, and every token with whether it carries loss.

Elements come from the language's own reader (afm_core.coa), tokens and mask from the ledger
(afm_core.tokens): nothing is tokenised or masked in another way than in training. Text outside every element
becomes an element `text`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from afm_core.coa import Element, elements_of
from afm_core.data import AgentTask, Origin, Trajectory
from afm_core.evaluation.report.data import ElementView, TokenView, TrajectoryView
from afm_core.tokens import Ledger, ledger_of, special_tokens

OUTSIDE = "text"
END_MARK = "▢"
LINE_BREAK = "⏎"


@dataclass
class _Span:
    """A piece of one segment's text, and the tokens found in it."""

    segment: int
    start: int
    view: ElementView
    tokens: list[TokenView]


def view_trajectory(
    trajectory: Trajectory,
    *,
    group: str,
    source: str,
    task: AgentTask | None = None,
    tokenizer: Any = None,
    prompt: str = "",
    prompt_tokens: int = 0,
    mask_observations: bool = True,
    train_mistakes: bool = False,
    append_end_of_turn: bool = True,
    trained: str = "carried loss in SFT",
) -> TrajectoryView:
    """The view of a trajectory. Without a tokenizer it has elements and no tokens.

    append_end_of_turn: as in SFT; an episode shows only what was sampled.

    Raises:
        ValueError: the trajectory cannot be tokenised (see afm_core.tokens.ledger_of).
    """
    spans = _spans(trajectory)
    if tokenizer is not None and spans:
        ledger = ledger_of(trajectory, tokenizer, [], append_end_of_turn=append_end_of_turn)
        _fill(spans, ledger, ledger.mask(mask_observations, train_mistakes), tokenizer)
    return TrajectoryView(
        id=trajectory.id,
        group=group,
        question=trajectory.question,
        elements=tuple(_with_tokens(span) for span in spans),
        answer=trajectory.answer,
        expected=task.answers if task else (),
        status=str(trajectory.status),
        reward=trajectory.reward,
        hops=task.difficulty.hops if task else None,
        source=source,
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        violations=trajectory.violations,
        trained=trained,
    )


def _spans(trajectory: Trajectory) -> list[_Span]:
    """Elements in order, with the text between them; every token of a segment has a span to fall into."""
    spans = []
    by_segment: dict[int, list[Element]] = {}
    for element in elements_of(trajectory):
        by_segment.setdefault(element.segment, []).append(element)
    for index, segment in enumerate(trajectory.segments):
        if segment.origin in (Origin.PROMPT, Origin.TEMPLATE):
            continue
        position = 0
        for element in by_segment.get(index, []):
            spans.extend(_outside(segment.text[position : element.start], index, position, segment.origin))
            view = ElementView(str(element.tag), element.text.strip("\n"), str(segment.origin), segment.mistake)
            spans.append(_Span(index, element.start, view, []))
            position = element.end
        spans.extend(_outside(segment.text[position:], index, position, segment.origin))
    return spans


def _outside(text: str, segment: int, start: int, origin: Origin) -> list[_Span]:
    return [_Span(segment, start, ElementView(OUTSIDE, text, str(origin)), [])] if text.strip() else []


def _fill(spans: Sequence[_Span], ledger: Ledger, mask: Sequence[int], tokenizer: Any) -> None:
    """Give every token of the ledger to the span it starts in; what follows the last segment goes to the last span."""
    shown = {span.segment for span in spans}
    position = 0
    while position < len(ledger):
        segment, end = ledger.segments[position], position
        while end < len(ledger) and ledger.segments[end] == segment:
            end += 1
        members = [span for span in spans if span.segment == segment] or ([spans[-1]] if segment not in shown else [])
        offset = 0
        for place, text in enumerate(token_texts(tokenizer, ledger.ids[position:end]), start=position):
            fitting = [span for span in members if span.start <= offset] or members[:1]
            if fitting:
                fitting[-1].tokens.append(TokenView(text.replace("\n", LINE_BREAK), bool(mask[place])))
            offset += 0 if text == END_MARK else len(text)
        position = end


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token; together they are the decoded text (special tokens as a mark).

    A character whose bytes are spread over several tokens is shown at the last of them, the others are empty.
    """
    special = special_tokens(tokenizer)
    texts: list[str] = []
    pending: list[int] = []
    for id in ids:
        if id in special:
            texts.append(END_MARK)
            pending = []
            continue
        pending.append(id)
        text = tokenizer.decode(pending, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if text.endswith("\ufffd") and len(pending) < 4:
            texts.append("")
        else:
            texts.append(text)
            pending = []
    return texts


def _with_tokens(span: _Span) -> ElementView:
    view = span.view
    return ElementView(view.tag, view.text, view.origin, view.mistake, tuple(span.tokens))
