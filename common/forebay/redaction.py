"""What must never leave in an answer or a log: values whose names mark a key, token, password or the like.

A name is taken apart into words (`apiKeys`, `api-keys` and `API_KEYS` are the same). Words that are harmless together
go, then a word that marks a secret decides, wherever it stands. To hide too much costs a fact; too little, a key.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

SEAM = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
PLACE = re.compile(r"_(?:file|filename|path|dir|directory|folder|env)_$")
"""Where a secret is kept, which is none."""
OWNED = re.compile(
    r"_(?:access|admin|api|auth|bearer|client|encryption|hf|hub|license|master|private|refresh|secret|security|session"
    r"|signing|ssh|user)_(?:keys?|tokens?)_"
)
"""These are no keys of attention and no tokens of a text, whatever follows."""
HARMLESS = re.compile(
    r"_(?:"
    # parts of attention, caches and sorting that the field calls keys
    r"key_value_(?:heads?|states?|pairs?|cache|dims?|size)"
    r"|(?:query|qk|primary|foreign|sort|group|partition)_keys?"
    r"|keys?_(?:heads?|dims?|size|len|length|cache|padding|mask|proj|norm|scales?|dtype|layout|bits|count|names?|ids?)"
    # pieces of a vocabulary
    r"|(?:bos|eos|eot|eom|eod|pad|unk|cls|sep|mask|stop|start|end|begin|prefix|suffix|middle|special|soft|control|reserved"
    r"|image|video|audio|speech|vision|text|think|tool|call|first|last|next|per|one|each|single)_token"
    r")(?=_)"
)
SECRET = re.compile(
    r"_(?:"
    r"keys?|[a-z]*apikeys?|secrets?|passwords?|passwd|passphrases?|credentials?|authorization|cookies?"
    # `tokens`, and a token with more behind it (`token_ids`), are mostly those of a text
    r"|token(?:_(?:[a-z]|\d+|value|string))*_$"
    # what a watermark is made with
    r"|watermark_(?:config|params?|parameters|seeds?|salts?)"
    r")(?:_|$)"
)


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Whether a value under this name must never leave."""
    words = "_" + "_".join(word for word in SEAM.split(name) if word).lower() + "_"
    if PLACE.search(words):
        return False
    return bool(OWNED.search(words) or SECRET.search(HARMLESS.sub("_", words)))


def without_secrets(value: Any) -> Any:
    """The same value without any map entry whose name marks a secret, at any depth, also in a text that is a JSON
    object. A flag is never one."""
    if isinstance(value, dict):
        return {k: without_secrets(v) for k, v in value.items() if isinstance(v, bool) or not is_secret(str(k))}
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    if isinstance(value, str) and value.lstrip()[:1] == "{":
        return _text_without_secrets(value)
    return value


def _text_without_secrets(text: str) -> str:
    """Settings often travel as JSON in a text; one without secrets, or that is no JSON, stays as it is."""
    try:
        inner = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    cleaned = without_secrets(inner)
    return text if cleaned == inner else msgspec.json.encode(cleaned).decode()
