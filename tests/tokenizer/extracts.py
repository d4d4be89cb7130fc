"""Extracts of published tokenizers (`extracts/NAME.json`): the vocabulary and merges that a few texts need, with the
ids and texts that the whole tokenizer gives for them, renumbered. CI checks these without the network.

`python -m tests.tokenizer.extracts DIR` makes them again from the packages in DIR. A byte-pair encoder with only the
merges that took place gives the same ids: what happens first in the whole is there, and is first in the extract.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer

from forebay_tokenizer.bounds import byte_alphabet
from tests.tokenizer.real import CHATS, TEXTS

FOLDER = Path(__file__).parent / "extracts"
NAMES = ("qwen3", "llama3", "llama2", "gemma3", "deepseek_v3", "gptoss", "gemini")
SAMPLE = (0, 7, 9, 10, 12)
"""Of the texts of `real`, those whose vocabulary stays small and that differ most."""
MAX_ADDED = 12


def names() -> list[str]:
    """The extracts that are committed."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load(name: str) -> tuple[Tokenizer, dict[str, Any]]:
    """An extract as a tokenizer, and its cases: `encode` (text, ids) and `decode` (ids, special hidden, text)."""
    held = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return Tokenizer.from_str(json.dumps(held["tokenizer"])), held["cases"]


def make(path: Path, name: str) -> dict[str, Any]:
    """The extract of one tokenizer.json."""
    spec = json.loads(path.read_text(encoding="utf-8"))
    whole = Tokenizer.from_file(str(path))
    whole.no_truncation()
    whole.no_padding()
    texts = _texts(name, [token["content"] for token in spec["added_tokens"]])
    added = _added(spec, texts)
    encoded = [whole.encode(text, add_special_tokens=False).ids for text in texts]
    random = Random(5)
    drawn = [[random.choice(random.choice(encoded) or [0]) for _ in range(random.randrange(1, 12))] for _ in range(40)]
    merges = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in spec["model"]["merges"]]
    used = {one for ids in encoded for one in ids} | _always(whole, spec) | {token["id"] for token in added}
    kept, entries = _closure(whole, used, merges)
    number = {token: at for at, token in enumerate(entries)}
    renumber = {whole.token_to_id(token): at for token, at in number.items()}
    spec["model"] |= {"vocab": number, "merges": [list(pair) for pair in kept]}
    spec |= {"added_tokens": [token | {"id": number[token["content"]]} for token in added], "post_processor": None}
    spec |= {"truncation": None, "padding": None}
    cases = {
        "encode": [[text, [renumber[i] for i in ids]] for text, ids in zip(texts, encoded, strict=True)],
        "decode": [
            [[renumber[i] for i in ids], skip, text]
            for at, ids in enumerate([*encoded, *drawn])
            for skip in ((True, False) if at % 2 else (False,))
            if (text := whole.decode(ids, skip_special_tokens=skip)) and _is_exact(whole, text)
        ],
    }
    return {"tokenizer": spec, "cases": cases}


def _added(spec: dict[str, Any], texts: list[str]) -> list[dict[str, Any]]:
    """The added tokens that stand in the texts, and some others."""
    inside = [token for token in spec["added_tokens"] if any(token["content"] in text for text in texts)]
    return inside + [token for token in spec["added_tokens"] if token not in inside][:MAX_ADDED]


def _is_exact(whole: Tokenizer, text: str) -> bool:
    """Whether a stream gives this text: with byte fallback, not where a run of bytes was taken back."""
    return "\ufffd" not in text or "ByteLevel" in whole.decoder.__getstate__().decode()


def _texts(name: str, added: list[str]) -> list[str]:
    form = CHATS[name]
    turns = [form.turn.format(role="user", text=TEXTS[at]) for at in SAMPLE]
    return [TEXTS[at] for at in SAMPLE] + ["".join([form.head, *turns[:2]]), f"a {added[0]} b{added[-1]}\n"]


def _always(whole: Tokenizer, spec: dict[str, Any]) -> set[int]:
    """The tokens of single bytes and of what is unknown."""
    tokens = [*byte_alphabet(), *(f"<0x{byte:02X}>" for byte in range(256)), spec["model"].get("unk_token") or ""]
    return {i for token in tokens if (i := whole.token_to_id(token)) is not None}


def _closure(
    whole: Tokenizer, used: set[int], merges: list[tuple[str, ...]]
) -> tuple[list[tuple[str, ...]], list[str]]:
    """The merges that build these tokens, and all entries that take part, in the order of their ids."""
    rank = {pair: at for at, pair in enumerate(merges)}
    kept: set[tuple[str, ...]] = set()
    vocab = whole.get_vocab(with_added_tokens=True)
    entries = {token for token, i in vocab.items() if i in used}
    for token in list(entries):
        parts = list(token)
        while len(parts) > 1:
            found = [(rank[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in rank]
            if not found:
                break
            at = min(found)[1]
            kept.add((parts[at], parts[at + 1]))
            entries |= {parts[at], parts[at + 1], parts[at] + parts[at + 1]}
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return sorted(kept, key=rank.__getitem__), sorted(entries & vocab.keys(), key=vocab.__getitem__)


def main(root: Path) -> None:
    """Write all extracts."""
    FOLDER.mkdir(exist_ok=True)
    for name in NAMES:
        made = json.dumps(make(root / name / "tokenizer.json", name), ensure_ascii=False, separators=(",", ":"))
        (FOLDER / f"{name}.json").write_text(made + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
