"""From the bytes of a request to a typed struct: strict JSON, every fault a 400 with a text that names it.

One msgspec decode on the good path; explaining what is wrong is done only after something is (`typeerrors`).
Refused: other encodings than UTF-8, a byte order mark, NaN and Infinity, half surrogate pairs, integers over 64 bits
in typed fields, deep nesting, a member of the body given twice (bodies up to 1 MiB), anything but an object.
"""

from __future__ import annotations

import json
import re
from typing import Any, Generic, TypeVar

import msgspec

from forebay.errors import RequestError
from forebay_api.typeerrors import Titles, clipped, explain

MAX_DEPTH = 128
"""Arrays and objects within each other. The tokenizer and the engine read parts of a body again, on deeper stacks."""
MAX_CONTAINERS = 1 << 20
"""Arrays and objects in one body, counted only in bodies that need the exact look at their depth."""
DUPLICATES_BYTES = 1 << 20
"""Larger bodies are not searched for duplicate members: it would cost as much memory again."""
_CHUNK = 1 << 20
_FOLD = bytes.maketrans(b"{}", b"[]")
_NOISE = bytes(byte for byte in range(256) if byte not in b'{}[]"')
_STRING = re.compile(rb'"[^"]*"')
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")


class BodyReader(Generic[S]):
    """Reads the bodies of one route into `type`. Made once: the typed decoder is compiled here."""

    def __init__(self, type: type[S], titles: Titles) -> None:
        self._decoder = msgspec.json.Decoder(type)
        self._titles = titles

    def read(self, body: bytes) -> S:
        """The body as a struct. Raises `RequestError` (400), with the dotted path of the field in `param`."""
        value = decoded(self._decoder, body, self._titles)
        if len(body) <= DUPLICATES_BYTES:
            _refuse_duplicates(body)
        return value


def decoded(decoder: msgspec.json.Decoder[T], text: bytes, titles: Titles, prefix: str = "") -> T:
    """JSON text through a typed decoder, all but the search for duplicates. `prefix`: the field that holds the text.

    Raises `RequestError` (400).
    """
    try:
        if not text.isascii():
            text.decode()  # msgspec skips over the strings of unknown and raw fields without a look at them
        value = decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _fault(error, text, titles, prefix) from error
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH:
        refuse_deep(text, prefix)
    return value


def refuse_deep(text: bytes, param: str = "") -> None:
    """Raise `RequestError` when well-formed JSON text is nested deeper than `MAX_DEPTH`, or has too many containers."""
    brackets = _outer_brackets(text)
    if len(brackets) > 2 * MAX_CONTAINERS:
        raise RequestError(f"the JSON text has more than {MAX_CONTAINERS} arrays and objects", param=param or None)
    for _ in range(MAX_DEPTH):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"")  # takes away exactly the innermost level
    if brackets:
        raise _too_deep(param)


def _outer_brackets(text: bytes) -> bytes:
    """The brackets of JSON text that stand outside its strings, braces turned into brackets."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = text.translate(_FOLD, _NOISE).replace(b'""', b"")
    pieces = []
    inside = False  # a string reaches over the edge of a chunk; chunks bound the memory of `sub`
    for start in range(0, len(marks), _CHUNK):
        chunk = (b'"' if inside else b"") + marks[start : start + _CHUNK]
        inside = chunk.count(b'"') % 2 == 1
        pieces.append(_STRING.sub(b"", chunk + b'"' if inside else chunk))
    return b"".join(pieces)


def _refuse_duplicates(body: bytes) -> None:
    """Raise `RequestError` when the object names a member twice.

    A dict of the members has lost a first one; so if the members, written again the way encoders write them, give
    the body, there was none. Only bodies with other spacing take the slow way.
    """
    members = _MEMBERS.decode(body)
    if body == _encode(members):
        return
    if body == b"{" + b", ".join([b'"%b": %b' % (key.encode(), raw) for key, raw in members.items()]) + b"}":
        return
    seen = set()
    for key in json.loads(body, object_pairs_hook=_keys, parse_int=str, parse_float=str):
        if key in seen:
            raise RequestError(f"duplicate field `{clipped(key)}`", param=clipped(key))
        seen.add(key)


def _keys(pairs: list[tuple[str, Any]]) -> list[str]:
    return [key for key, _ in pairs]


def _fault(error: Exception, text: bytes, titles: Titles, prefix: str) -> RequestError:
    try:
        if isinstance(error, msgspec.ValidationError):
            return explain(error, text, titles, prefix)
    except (msgspec.DecodeError, RecursionError) as worse:  # what follows the wrong type is not JSON at all
        error = worse.with_traceback(None)  # it would be in a ring with this frame, which holds the body
    if isinstance(error, RecursionError):
        return _too_deep(prefix)
    if isinstance(error, UnicodeDecodeError):
        reason = f"not UTF-8 (byte {error.start})"
    elif text.startswith(b"\xef\xbb\xbf"):
        reason = "it begins with a byte order mark"
    else:
        reason = str(error).removeprefix("JSON is malformed: ")
    return RequestError(f"the request body is not valid JSON: {reason}", param=prefix or None)


def _too_deep(param: str) -> RequestError:
    return RequestError(f"the JSON text is nested deeper than {MAX_DEPTH} levels", param=param or None)
