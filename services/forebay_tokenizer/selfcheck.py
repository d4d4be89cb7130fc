"""Texts on which a shortcut (the segment cache, the fast encoder) is held against the plain encoder at start."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import tokenizers

VOCABULARY_TEXTS = 96
WORDS_A_TEXT = 24
MAX_ADDED = 256
"""Added tokens that are tried, of those that a tokenizer has (gemma3: 6,415)."""

TEXTS = (
    "You are a helpful assistant.",
    "user\nWhat is 12 * 345?\n\nAnswer briefly, please.",
    " leading and trailing blanks  ",
    "\n\n\tdef f(x: int) -> str:\n        return f'{x!r}'\n",
    "Grüße aus Köln, naïve façade, Ελληνικά, Русский, עברית, العربية, हिन्दी",
    "漢字とかな、한국어 텍스트。",
    "emoji \U0001f469\u200d\U0001f680 and a flag \U0001f1e9\U0001f1ea, e\u0301 and \u00e9, \u2581 and \u00a0",
    "x",
    " ",
    "\n",
    "https://example.org/a?b=c&d=%20 1234567 0x7f don't I'LL",
    "<|not a token|> <s] [INST] </ s>",
)


def sample_texts(cuts: Sequence[str]) -> list[str]:
    """Texts and chats that put every cut token between pieces of every sort, blanks at the borders included."""
    out = list(TEXTS)
    for at, cut in enumerate(cuts):
        before, after = TEXTS[at % len(TEXTS)], TEXTS[(at * 5 + 3) % len(TEXTS)]
        out += [f"{cut}{before}{cut}{after}", f"{before} {cut} {after}", f"{before}\n{cut}\n{after}{cut}{cut}"]
    for at, text in enumerate(TEXTS if cuts else ()):
        cut, other = cuts[at % len(cuts)], cuts[(at + 1) % len(cuts)]
        out.append("".join(f"{cut}{word}{other}\n" for word in TEXTS[at:]) + cut + text)
    return out


def vocabulary_texts(tokenizer: tokenizers.Tokenizer) -> list[str]:
    """Texts of this vocabulary's own tokens in random order, added tokens and blanks among them; always the same."""
    random = Random(0)  # noqa: S311 - the same texts at every start, no secret
    added = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    ids = [[random.randrange(size) for _ in range(WORDS_A_TEXT)] for _ in range(VOCABULARY_TEXTS)]
    out = tokenizer.decode_batch(ids, skip_special_tokens=False)
    out += ["".join(random.choice(text) for _ in range(40)) for text in out if text]
    for content in random.sample(added, min(MAX_ADDED, len(added))):
        left, right = random.choice(TEXTS), random.choice(TEXTS)
        out += [content, f"{left}{content}{right}", f"{left} {content} {right}", f"a{content}a{content}{content} "]
    out += ["\0", "", "  " * 50, "\r\n\r\n", "a" * 300, "\u0301" * 9, "12345" * 20, "\n".join(TEXTS) * 3]
    return out
