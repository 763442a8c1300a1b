"""A scripted engine and a character tokenizer: every token is one character, so texts and ids say the same."""

from collections import defaultdict
from types import SimpleNamespace

from afm_core.engines import FinishReason, Generation

END = 2


class CharacterTokenizer:
    """Ids are code points; <|im_start|> and <|im_end|> are 1 and 2."""

    unk_token_id = None
    eos_token_id = END
    all_special_ids = (1, END)
    all_special_tokens = ("\x01", "\x02")
    added_tokens_decoder = {  # noqa: RUF012 - read-only
        1: SimpleNamespace(content="\x01", special=True),
        END: SimpleNamespace(content="\x02", special=True),
    }
    chat_template = "{{ messages }}"

    def __call__(self, text, add_special_tokens=True, split_special_tokens=False):
        return {"input_ids": [ord(character) for character in text]}

    def decode(self, ids, skip_special_tokens=False, clean_up_tokenization_spaces=False):
        return "".join(chr(i) for i in ids if not (skip_special_tokens and i in self.all_special_ids))

    def apply_chat_template(self, turns, tokenize=False, add_generation_prompt=False):
        text = "".join(f"\x01{turn['role']}\n{turn['content']}\x02\n" for turn in turns)
        return text + ("\x01assistant\n" if add_generation_prompt else "")


class ScriptedEngine:
    """Turns come from a script: question -> list of turns; a turn is a text, or an exception to raise in submit.

    A turn ends at its first stop string (with `overhang` characters kept), at the end token, or at its length.
    """

    def __init__(self, scripts, slots=8, max_length=4096, overhang=0):
        self.tokenizer = CharacterTokenizer()
        self.policy_version = "model-1"
        self.scripts = scripts
        self.slots = slots
        self.max_length = max_length
        self.overhang = overhang
        self.requests = []
        self.released = []
        self.queue = []
        self.turn_of = defaultdict(int)

    def submit(self, request):
        prompt = self.tokenizer.decode(request.prompt_ids)
        question = prompt.split("Question: ")[-1].split("\x02")[0]
        turn = self.scripts[question][self.turn_of[request.session]]
        self.turn_of[request.session] += 1
        if isinstance(turn, Exception):
            raise turn
        self.requests.append(request)
        self.queue.append((request, turn))

    def step(self):
        finished = [self._generation(*one) for one in self.queue]
        self.queue = []
        return finished

    def pending(self):
        return len(self.queue)

    def release(self, session):
        self.released.append(session)
        self.queue = [(request, turn) for request, turn in self.queue if request.session != session]

    def load_weights(self, directory, policy_version):
        assert not self.queue, "weights change between turns"
        self.policy_version = policy_version

    def close(self):
        self.closed = True

    def _generation(self, request, turn):
        ends = [(turn.find(stop) + len(stop), stop) for stop in request.stop if stop in turn]
        end, stop = min(ends) if ends else (len(turn), None)
        ids = [ord(character) for character in turn[: end + (self.overhang if stop else 0)]]
        finish = FinishReason.STOP if stop else FinishReason.END
        if len(ids) > request.max_new_tokens:
            ids, finish, stop = ids[: request.max_new_tokens], FinishReason.LENGTH, None
        elif finish is FinishReason.END:
            ids.append(END)
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return Generation(request.id, tuple(ids), tuple(-0.5 for _ in ids), text, finish, stop)
