"""The texts of type errors in request bodies: what msgspec found wrong, said in the fixed words that clients compare.

Runs only after a body has been refused, so it may decode the body a second time to show the offending value.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from forebay.errors import RequestError

SHOWN_BYTES = 1 << 20
"""Above this size a refused body is not decoded a second time; the text then names the type without the value."""
SHOWN_CHARS = 100
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_MISMATCH = re.compile(r"Expected `([^`]*)`(?:, got `(\w+)`| ([<>]=) (-?\d+))")
_NAMED = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)
_LIST_FORMS = {
    "str": "a value or an array of values for StringOrList",
    "bool": "a value or an array of values for BoolOrList",
    "int": "a value or an array of values for Int64OrList",
}
_WORDS = {
    "int": "i64",
    "float": "f64",
    "bool": "a boolean",
    "str": "a string",
    "array": "a sequence",
    "object": "a map",
}
_TOKEN_FIELDS = {"input_ids", "token_ids_logprob", "tokens"}
_UNSIGNED_FIELDS = {"max_thinking_tokens", "thinking_token_budget"}
_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    list: "array",
    dict: "object",
}


Titles = dict[str, tuple[str, tuple[str, ...]]]
"""Struct name and field names that errors speak of, by the field that holds the struct (`""`: the body itself)."""


def explain(error: msgspec.ValidationError, body: bytes, titles: Titles, prefix: str = "") -> RequestError:
    """The 400 for a body of valid JSON with a wrong type in it. `prefix` goes before the path in `param`."""
    text, _, path = str(error).rpartition(" - at `$")
    if not text:
        text, path = str(error), "`"
    steps = [name or index for name, index in _STEP.findall(path[:-1])]
    value, steps = _look_up(body, steps, text)
    names = [step for step in steps if not step.isdigit()]
    message = _message(text, value, names, titles)
    param = ".".join(([prefix] if prefix else []) + steps)
    if (named := _NAMED.match(text)) is not None:
        param = f"{param}.{clipped(named[2])}" if param else clipped(named[2])
    return RequestError(message, param=param or None)


def describe(value: Any) -> str:
    """How an error text names a JSON value: `null`, ``integer `5` ``, `string "x"`, `sequence` ..."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int):
        return f"integer `{clipped(str(value))}`"
    if isinstance(value, float):
        return f"floating point `{value!r}`"
    if isinstance(value, str):
        return f"string {msgspec.json.encode(clipped(value)).decode()}"
    return "sequence" if isinstance(value, list) else "map"


def wrong_type(value: Any, expected: str, param: str) -> RequestError:
    """The 400 for a value that is checked by hand, in the words of the decoded ones."""
    return RequestError(f"invalid type: {describe(value)}, expected {expected}", param=param)


def clipped(text: str) -> str:
    """The text, or its beginning: an answer never echoes megabytes of a request."""
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..."


def _look_up(body: bytes, steps: list[str], text: str) -> tuple[Any, list[str]]:
    """The offending value and its path, with the member of a map that msgspec leaves unnamed (`...`) found."""
    got = match[2] if (match := _MISMATCH.match(text)) is not None else None
    if len(body) > SHOWN_BYTES:
        return _Unseen(got), [step for step in steps if step != "..."]
    try:
        value = msgspec.json.decode(body)
    except msgspec.ValidationError:  # a number beyond all floats, here or elsewhere: it cannot be shown
        return _Unseen(got), [step for step in steps if step != "..."]
    path: list[str] = []
    for step in steps:
        if isinstance(value, dict):
            step = _member(value, got) if step == "..." else step
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        path.append(step)
    if got is not None and _KINDS[type(value)] != got:
        return _Unseen(got), path  # the field stands in the body twice, and this is the other one
    return value, path


def _member(values: dict[str, Any], kind: str | None) -> str:
    """The first key whose value is of the kind that was refused."""
    return next((key for key, value in values.items() if _KINDS[type(value)] == kind), "")


class _Unseen:
    """Stands for a value that is not looked up: only its kind is known."""

    def __init__(self, kind: str | None) -> None:
        names = {"bool": "boolean", "int": "integer", "float": "floating point", "str": "string", "array": "sequence"}
        self.text = names.get(kind or "", "map" if kind == "object" else kind or "number")


def _message(text: str, value: Any, names: list[str], titles: Titles) -> str:
    shown = value.text if isinstance(value, _Unseen) else describe(value)
    field = names[-1] if names else ""
    if (named := _NAMED.match(text)) is not None:
        return _named_message(named, field, titles)
    if text.startswith("Number out of range"):
        return "number out of range"
    match = _MISMATCH.match(text)
    if match is None:
        return text
    if match[3]:
        unsigned = match[3] == ">=" and match[4] == "0"
        return f"invalid value: {shown}, expected {'u64' if unsigned else 'i64'}"
    return f"invalid type: {shown}, expected {_expected(match[1], field, titles)}"


def _named_message(named: re.Match[str], field: str, titles: Titles) -> str:
    if named[1] == "missing required":
        return f"missing field `{named[2]}`"
    known = ", ".join(f"`{name}`" for name in titles[field][1])
    return f"unknown field `{clipped(named[2])}`, expected one of {known}"


def _expected(types: str, field: str, titles: Titles) -> str:
    """The words for what msgspec expected, such as `str | array | null`."""
    parts = [part for part in types.split(" | ") if part != "null"]
    if "object" in parts and field in titles:
        return f"struct {titles[field][0]}"
    if "array" in parts:
        if field in _TOKEN_FIELDS:
            return "a value or an array of values for TokenIdsOrList"
        return next((_LIST_FORMS[part] for part in ("bool", "str", "int") if part in parts), "a sequence")
    if field in _UNSIGNED_FIELDS:
        return "u64"
    return " or ".join(_WORDS[part] for part in parts)
