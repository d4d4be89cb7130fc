"""Texts to ids: prompts through the tokenizer's own threads, fresh or as a chat with one new turn, alone or beside a
big one."""

from __future__ import annotations

import logging
import random
import threading
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec
from _common import SAMPLE, median

from forebay.settings import Settings
from forebay.wire.messages import ChatPrompt, OpenItem, RequestHead, SamplingParams, WorkItem
from forebay_tokenizer.admission import Admission
from forebay_tokenizer.worker import Tokenizer

LOG = logging.getLogger("bench")
TURNS = 20
FALLBACK = (
    "{% for m in messages %}{{ cut }}{{ m.role }}\n{{ m.content }}{{ cut }}\n{% endfor %}"
    "{% if add_generation_prompt %}{{ cut }}assistant\n{% endif %}"
)
"""For packages without a chat template; `cut` is one of the special tokens."""
LANGUAGES = (
    "Grüße aus Köln, naïve façade. Съешь же ещё этих мягких французских булок. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. "
    "中文：敏捷的棕色狐狸跳过懒狗。日本語：いろはにほへと、カタカナ。한국어: 다람쥐 헌 쳇바퀴에 타고파. "
    "العربية: نص حكيم له سر قاطع. हिन्दी: ऋषियों को सताने वाले। emoji 👩‍🚀 🇩🇪 👍🏽 🫠. "
)


def words(seed: int) -> list[str]:
    """Words of prose, of this repository's code and of several languages, in random order."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py")))
    pool = (SAMPLE.read_text(encoding="utf-8") * 3 + LANGUAGES * 2).split(" ") + code.split(" ")
    random.Random(seed).shuffle(pool)
    return pool


def text(size: int, seed: int) -> str:
    """A text of `size` characters in an order of words that no other seed has, a tenth of them made up."""
    chooser, pool = random.Random(seed), words(seed)
    out: list[str] = []
    length = 0
    while length < size:
        word = chooser.choice(pool)
        if chooser.random() < 0.1:
            word = "".join(chooser.choices("abcdefghijklmnopqrstuvwxyz", k=chooser.randrange(3, 10)))
        out.append(word)
        length += len(word) + 1
    return " ".join(out)[:size]


class Prompts:
    """One tokenizer process without its sockets; the caller stands for the thread that owns them."""

    def __init__(self, folder: Path, fast: bool, made: Path) -> None:
        """`made`: a folder for a chat template, should the tokenizer have none."""
        self._woken = threading.Event()
        self._number = 0
        settings = Settings(fast_tokenizer="auto" if fast else "off", context_length=1 << 30)
        self.tokenizer = Tokenizer.load(str(folder), settings, None, log=LOG, wake=self._woken.set)
        if not self.tokenizer._admitter.templates._templates:
            cut = next(iter(self.tokenizer._admitter.segments._cuts), "\n")
            made.write_text(FALLBACK.replace("{{ cut }}", cut), encoding="utf-8")
            settings = msgspec.structs.replace(settings, chat_template=str(made))
            self.tokenizer = Tokenizer.load(str(folder), settings, None, log=LOG, wake=self._woken.set)
        self.fast = self.tokenizer._admitter.encoder.fast is not None
        self.tokenizer.start()

    def plain(self, prompt: str) -> WorkItem:
        """A work item of a text."""
        return self._item(text=prompt)

    def chat(self, turns: Sequence[str]) -> WorkItem:
        """A work item of a chat; an odd number of turns, the user's first and last."""
        roles = ("user", "assistant")
        messages = [{"role": roles[at % 2], "content": turn} for at, turn in enumerate(turns)]
        return self._item(chat=ChatPrompt(messages=msgspec.json.encode(messages)))

    def _item(self, **fields: object) -> WorkItem:
        self._number += 1
        rid = f"r{self._number}"
        head = RequestHead(rid=rid, sampling=SamplingParams(max_new_tokens=8))
        item = WorkItem(head=head, rids=[rid], open=OpenItem(rid=rid))
        return msgspec.structs.replace(item, **fields)

    def ms(self, item: WorkItem) -> float:
        """Milliseconds from a work item to its admission."""
        self.tokenizer.results()
        began = time.perf_counter()
        self.tokenizer.submit(item, array("q"))
        admission = self._next()
        spent = time.perf_counter() - began
        assert isinstance(admission, Admission), admission
        return 1e3 * spent

    def _next(self) -> object:
        while not (found := self.tokenizer.results()):
            assert self._woken.wait(60), "no result for a minute"
            self._woken.clear()
        return found[0]

    def fresh(self, size: int, rounds: int) -> float:
        """Milliseconds of a text that nobody has seen: the median."""
        return median(self.ms(self.plain(text(size, size + at))) for at in range(rounds)) or 0.0

    def one_new_turn(self, size: int, rounds: int) -> float:
        """Milliseconds of a chat of 19 known turns and a new one."""
        each = size // TURNS
        known = [text(each, 7_000 + at) for at in range(TURNS)]
        self.ms(self.chat([*known, "warm"]))
        new = [[*known, text(each, 9_000_000 + at)] for at in range(rounds)]
        return median(self.ms(self.chat(turns)) for turns in new) or 0.0

    def short_chat(self, rounds: int) -> float:
        """Milliseconds of a short chat with a new question, one at a time."""
        items = [self.chat([f"What is the capital of country number {at}, and why?"]) for at in range(rounds)]
        return median(map(self.ms, items)) or 0.0

    def beside(self, large: int, seconds: float) -> list[float]:
        """Milliseconds of each of many 1 KB prompts while prompts of `large` characters are at work all the time."""
        bigs = [text(large, 31 + at) for at in range(2)]
        smalls = [text(1000, 5_000 + at) for at in range(64)]
        spent: list[float] = []
        waiting: set[str] = set()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            while len(waiting) < 2:
                item = self.plain(bigs[self._number % 2])
                waiting.add(item.head.rid)
                self.tokenizer.submit(item, array("q"))
            small = self.plain(smalls[self._number % 64])
            began = time.perf_counter()
            self.tokenizer.submit(small, array("q"))
            done = False
            while not done:
                for one in self.tokenizer.results():
                    assert isinstance(one, Admission), one
                    done = done or one.heads[0].rid == small.head.rid
                    waiting.discard(one.heads[0].rid)
                if not done:
                    self._woken.wait(60)
                    self._woken.clear()
            spent.append(1e3 * (time.perf_counter() - began))
        while waiting:
            for one in self.tokenizer.results():
                assert isinstance(one, Admission), one
                waiting.discard(one.heads[0].rid)
            time.sleep(0.001)
        return spent

    def stop(self) -> None:
        """End the threads."""
        self.tokenizer.stop(30)
