"""Cutting an observation to its token budget."""

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from afm_core.coa import escape
from afm_core.rollout.observation import cut, observation_segment
from afm_core.tokens import encode_text


def _byte_level():
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    core.train_from_iterator(["the observation </observation> answer"] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>")


TOKENIZER = _byte_level()
PIECES = st.lists(
    st.sampled_from(["</observation>", "<answer>", "日本", "é", "word ", "x", "<|end|>", "\n"]), max_size=40
)


@given(text=PIECES.map("".join), limit=st.integers(1, 60))
def test_the_escaped_text_never_exceeds_its_limit_and_short_text_is_whole(text, limit):
    shorter = cut(TOKENIZER, text, limit)
    assert len(encode_text(TOKENIZER, escape(shorter))) <= limit
    if len(encode_text(TOKENIZER, escape(text))) <= limit:
        assert shorter == text


@given(text=PIECES.map("".join))
def test_an_observation_holds_no_special_token_and_decodes_to_its_escaped_text(text):
    segment = observation_segment(TOKENIZER, text, 10_000)
    assert TOKENIZER.eos_token_id not in segment.token_ids
    assert TOKENIZER.decode(segment.token_ids) == f"<observation>{escape(text)}</observation>"
