"""What must never leave in an answer or a log: values whose names mark a key, token, password or the like.

A name is taken apart into words (`apiKeys`, `api-keys` and `API_KEYS` are the same). Words that are harmless together
go, then a word that marks a secret decides, wherever it stands. To hide too much costs a fact; too little, a key.
A text can hold a secret, too: as JSON, as a command line, as a header, in a URL.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

HIDDEN = "***"
"""Stands for a secret in a text, or behind a flag in a list."""
NAMES = ("loaded_adapters", "lora_paths")
"""Maps whose keys are names that somebody chose, and say nothing of what is under them."""
SEAM = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
ABOUT = re.compile(r"_(?:file|filename|path|dir|directory|folder|env|dtype)_$")
"""Where a secret is kept, or what form it has, which is none."""
OWNED = re.compile(
    r"_(?:access|admin|api|auth|bearer|client|encryption|hf|hub|license|master|private|refresh|secret|security|session"
    r"|signing|ssh|user)_(?:keys?|tokens?)\d*_"
)
"""These are no keys of attention and no tokens of a text, whatever follows."""
HARMLESS = re.compile(
    r"_(?:"
    # parts of attention, caches and sorting that the field calls keys
    r"key_value_(?:heads?|states?|pairs?|cache|dims?|size)"
    r"|(?:query|qk|primary|foreign|sort|group|partition|public|cache|mm|multimodal)_keys?"
    r"|keys?_(?:heads?|dims?|size|len|length|cache|padding|mask|proj|norm|scales?|dtype|layout|bits|count|names?|ids?)"
    # passes of a model or a compiler; a way to sign in; what a function takes
    r"|(?:forward|backward|single|multi|one|two|first|second|prefill|decode|fusion|compile|compiler)_pass"
    r"|pass_(?:config|manager|context|names?|through|count|rate)"
    r"|auth_(?:type|mode|method|scheme)"
    r"|(?:function|method|kernel|tool|type|call|input|output)_signatures?"
    # pieces of a vocabulary
    r"|(?:bos|eos|eot|eom|eod|pad|unk|cls|sep|mask|stop|start|end|begin|prefix|suffix|middle|special|soft|control|reserved"
    r"|image|video|audio|speech|vision|text|think|tool|call|first|last|next|per|one|each|single)_token"
    r")(?=_)"
)
SECRET = re.compile(
    r"_(?:"
    r"(?:keys?|[a-z]*apikeys?|secrets?|passwords?|passwd|pwd|pass|passcodes?|passphrases?|credentials?|creds?"
    r"|authorization|o?auth|bearer|jwts?|t?otp|sas|signatures?|cookies?|dsns?)\d*"
    # addresses that mostly hold a password
    r"|(?:connection|conn)_(?:strings?|str|ur[il])|(?:database|db|postgres|postgresql|mysql|mongo|mongodb|redis|amqp"
    r"|broker)_ur[il]"
    # `tokens`, and a token with more behind it (`token_ids`), are mostly those of a text
    r"|token\d*(?:_(?:[a-z]|\d+|value|string))*_$"
    # what a watermark is made with
    r"|watermark_(?:config|params?|parameters|seeds?|salts?)"
    r")(?:_|$)"
)
VALUE = r"""(?:"[^"]*+"|'[^']*+'|["']?[^\s"',;&)}\]]+)"""
USER = re.compile(r"""(?<=://)[^\s/?#"'<>]*@""")
"""A user, mostly with a password, or a token in place of both: `https://user:password@host`."""
HEADER = re.compile(
    r"""\b((?:proxy-)?authorization["']?+\s*+[:=]|(?:(?:set-)?cookie|(?:x-)?api-?key)["']?+\s*+:)(\s*+["']?+)[^"'\r\n]++""",
    re.I,
)
BEARER = re.compile(r"""\b(bearer\s++)[^\s"',;]++""", re.I)
FLAG = re.compile(rf"(?<!\S)(-{{1,2}}[A-Za-z][\w-]*+)(\s++){VALUE}")
"""`--api-key abc`"""
ASSIGNED = re.compile(rf"""(?<![\w.-])([\w.-]{{1,128}}+)(["']?+\s*+=(?!=)\s*+|["']\s*+:\s*+){VALUE}""")
"""`API_KEY=abc`, and what a map looks like that was printed: `'api_key': 'abc'`"""
FLAG_ALONE = re.compile(r"-{1,2}[A-Za-z][\w-]*")


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Whether a value under this name must never leave."""
    words = "_" + "_".join(word for word in SEAM.split(name) if word).lower() + "_"
    if ABOUT.search(words):
        return False
    return bool(OWNED.search(words) or SECRET.search(HARMLESS.sub("_", words)))


def without_secrets(value: Any) -> Any:
    """The same value without any map entry whose name marks a secret, at any depth, also in texts that are JSON; in
    other texts, and behind a flag in a list, stars in place of a secret. A flag (true, false) is never one."""
    if isinstance(value, dict):
        return {
            key: _named(inner) if key in NAMES else without_secrets(inner)
            for key, inner in value.items()
            if isinstance(inner, bool) or not is_secret(str(key))
        }
    if isinstance(value, list):
        return _items(value)
    if isinstance(value, str):
        return _text(value)
    return value


def _named(value: Any) -> Any:
    """What stands under one of `NAMES`."""
    if isinstance(value, dict):
        return {name: without_secrets(inner) for name, inner in value.items()}
    return without_secrets(value)


def _items(items: list[Any]) -> list[Any]:
    """A list may be a command line: the item behind a flag that names a secret is one."""
    out: list[Any] = []
    behind = False
    for item in items:
        out.append(HIDDEN if behind and isinstance(item, str) else without_secrets(item))
        behind = isinstance(item, str) and FLAG_ALONE.fullmatch(item) is not None and is_secret(item)
    return out


def _text(text: str) -> str:
    """Settings often travel as JSON in a text; one without secrets stays as it is, to the blank."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            inner = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            pass
        else:
            cleaned = without_secrets(inner)
            return text if cleaned == inner else msgspec.json.encode(cleaned).decode()
    if "://" in text:
        text = USER.sub(HIDDEN + "@", text)
    text = HEADER.sub(rf"\1\2{HIDDEN}", text)
    text = BEARER.sub(rf"\1{HIDDEN}", text)
    if "-" in text:
        text = FLAG.sub(_starred, text)
    return ASSIGNED.sub(_starred, text) if "=" in text or ":" in text else text


def _starred(found: re.Match[str]) -> str:
    """A name with its value, the value starred if the name marks a secret."""
    return f"{found[1]}{found[2]}{HIDDEN}" if is_secret(found[1]) else found[0]
