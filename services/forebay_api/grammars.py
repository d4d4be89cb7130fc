"""Constraints on the output: at most one of JSON schema, regex, EBNF and structural tag, and the ways to ask for it.

Checked here: form, size, and that JSON is JSON. Whether a grammar can be built is the engine's to say (it answers
400); a constraint is never dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from forebay.errors import RequestError
from forebay_api.jsonbody import decoded, refuse_deep
from forebay_api.typeerrors import describe, wrong_type

MAX_REGEX_BYTES = 16 * 1024
MAX_GRAMMAR_BYTES = 256 * 1024
"""JSON schema, EBNF, structural tag: larger ones take minutes to build."""
KEYS = ("json_schema", "regex", "ebnf", "structural_tag")
ANY_OBJECT = '{"type": "object"}'
_ONLY_ONE = "Only one of json_schema, regex, ebnf, or structural_tag can be set."
_META = frozenset("\\.^$|?*+()[]{}")

Grammar = tuple[str, str]
"""The sampling key and its text."""


def check_grammars(values: Sequence[str | None], choice: list[str], prefix: str = "") -> list[str | None]:
    """The texts of `KEYS` after the checks, `""` taken as unset and `choice` turned into a regex.

    Raises `RequestError` (400) for two constraints, a text that is too big, or JSON that is none.
    """
    json_schema, regex, ebnf, structural_tag = (value or None for value in values)
    if choice:
        if regex is not None:
            raise RequestError("choice and regex cannot be set together.", param=prefix + "choice")
        regex = choice_regex(choice, prefix + "choice")
    checked = [json_schema, regex, ebnf, structural_tag]
    if sum(value is not None for value in checked) > 1:
        raise RequestError(_ONLY_ONE)
    for key, value in zip(KEYS, checked, strict=True):
        if value is not None:
            _check_text(key, value, prefix + key)
    return checked


def choice_regex(choice: list[str], param: str) -> str:
    """A regex for exactly one of the strings."""
    if "" in choice:
        raise RequestError("choice cannot contain an empty string.", param=param)
    escaped = ("".join("\\" + char if char in _META else char for char in item) for item in choice)
    return "(?:" + "|".join(escaped) + ")"


def _check_text(key: str, value: str, param: str) -> None:
    text = value.encode()
    limit = MAX_REGEX_BYTES if key == "regex" else MAX_GRAMMAR_BYTES
    if len(text) > limit:
        raise RequestError(f"{key} is {len(text)} bytes, over the {limit}-byte limit", param=param)
    if key in ("json_schema", "structural_tag"):
        try:
            msgspec.json.decode(text, type=Raw)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"{key} is not valid JSON: {error}", param=param) from error
        refuse_deep(text, param)


class _SchemaHolder(msgspec.Struct):
    schema: Raw = Raw()
    name: str | None = None
    strict: bool | None = None


class _ResponseFormat(msgspec.Struct):
    type: str | None = None
    json_schema: _SchemaHolder | None = None
    schema: Raw = Raw()


class _StructuredOutputs(msgspec.Struct):
    json: Raw = Raw()
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Raw = Raw()


_FORMAT = msgspec.json.Decoder(_ResponseFormat)
_OUTPUTS = msgspec.json.Decoder(_StructuredOutputs)


def response_format(text: bytes) -> Grammar | None:
    """The constraint of an OpenAI `response_format`. Raises `RequestError` (400) for a malformed one."""
    form = decoded(_FORMAT, text, {}, "response_format")
    if form.type is None:
        raise RequestError("missing field `type`", param="response_format.type")
    if form.type == "text":
        return None
    if form.type == "structural_tag":
        return "structural_tag", _compact(text)
    if form.type not in ("json_object", "json_schema"):
        shown = describe(form.type)
        raise RequestError(f"response_format does not know the type {shown}", param="response_format.type")
    held = form.json_schema is not None and form.type == "json_schema"
    schema = bytes(form.json_schema.schema if held and form.json_schema else form.schema)
    param = "response_format.json_schema.schema" if held else "response_format.schema"
    if schema in (b"", b"null"):
        if form.type == "json_object":
            return "json_schema", ANY_OBJECT
        raise RequestError("response_format of the type `json_schema` needs a schema", param=param)
    return "json_schema", _schema_text(schema, param)


def structured_outputs(text: bytes) -> Grammar | None:
    """The constraint of vLLM's `structured_outputs`. Raises `RequestError` (400) for none or two in it."""
    form = decoded(_OUTPUTS, text, {}, "structured_outputs")
    found: list[Grammar] = []
    if bytes(form.json) not in (b"", b"null"):
        found.append(("json_schema", _schema_or_text(bytes(form.json), "structured_outputs.json")))
    if form.json_object:
        found.append(("json_schema", ANY_OBJECT))
    if form.regex:
        found.append(("regex", form.regex))
    if form.choice:
        found.append(("regex", choice_regex(form.choice, "structured_outputs.choice")))
    if form.grammar:
        found.append(("ebnf", form.grammar))
    if bytes(form.structural_tag) not in (b"", b"null"):
        tag = _schema_or_text(bytes(form.structural_tag), "structured_outputs.structural_tag")
        found.append(("structural_tag", tag))
    if len(found) > 1:
        raise RequestError("structured_outputs can hold only one constraint", param="structured_outputs")
    return found[0] if found else None


def only_one(asked: dict[str, Grammar | None]) -> Grammar | None:
    """The one constraint among the fields that may ask for it. Raises `RequestError` (400) when two do."""
    found = [(field, grammar) for field, grammar in asked.items() if grammar is not None and grammar[1]]
    if len(found) > 1:
        fields = " and ".join(field for field, _ in found)
        raise RequestError(f"only one constraint can be set, got {fields}", param=found[1][0])
    return found[0][1] if found else None


def _schema_or_text(text: bytes, param: str) -> str:
    """A schema given as an object, or as a string that holds its JSON."""
    if text.startswith(b'"'):
        return str(msgspec.json.decode(text))
    return _schema_text(text, param)


def _schema_text(text: bytes, param: str) -> str:
    if not text.startswith(b"{"):
        value: Any = msgspec.json.decode(text)
        raise wrong_type(value, "a map", param)
    return _compact(text)


def _compact(text: bytes) -> str:
    return msgspec.json.format(text, indent=-1).decode()
