"""Whether a JSON value is a JSON Schema (draft 2020-12) in form: each keyword's value of the kind it must have.

Catches the slips that clients make before a template or an engine trips over them. It resolves no references and
compiles no patterns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_ONE = ("additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then")
_ONE_SCHEMA = {*_ONE, "unevaluatedItems", "unevaluatedProperties"}
_LIST_OF_SCHEMAS = {"allOf", "anyOf", "oneOf", "prefixItems"}
_MAP_OF_SCHEMAS = {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
_COUNTS = ("maxContains", "maxItems", "maxLength", "maxProperties", "minContains", "minItems", "minLength")
_NUMBERS = ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum")
_TEXTS = ("$anchor", "$comment", "$dynamicRef", "$id", "$ref", "$schema", "description", "format", "pattern", "title")
_FLAGS = ("deprecated", "readOnly", "uniqueItems", "writeOnly")


def schema_fault(schema: Any, path: str = "") -> str | None:
    """What is wrong with a schema, with the place (`at properties.city.type`), or None."""
    if isinstance(schema, bool):
        return None
    if not isinstance(schema, dict):
        return f"a schema must be an object or a boolean{_at(path)}"
    for keyword, value in schema.items():
        here = f"{path}.{keyword}" if path else keyword
        check = _PLAIN.get(keyword)
        if check is not None and not check[0](value):
            return f"{keyword} must be {check[1]}{_at(here)}"
        fault = _fault_within(keyword, value, here)
        if fault is not None:
            return fault
    return None


def _fault_within(keyword: str, value: Any, here: str) -> str | None:
    """The first fault of the schemas that a keyword holds."""
    if keyword in _ONE_SCHEMA:
        return schema_fault(value, here)
    inner: list[tuple[Any, Any]] = []
    if keyword in _LIST_OF_SCHEMAS:
        inner = list(enumerate(value))
    elif keyword in _MAP_OF_SCHEMAS:
        inner = list(value.items())
    faults = (schema_fault(one, f"{here}.{name}") for name, one in inner)
    return next((fault for fault in faults if fault is not None), None)


def _at(path: str) -> str:
    return f" (at {path[:200]})" if path else ""


def _is_type(value: Any) -> bool:
    if isinstance(value, str):
        return value in _TYPES
    return isinstance(value, list) and bool(value) and _is_names(value) and set(value) <= set(_TYPES)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value) and len(set(value)) == len(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_map_of_names(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_names, value.values()))


_PLAIN: dict[str, tuple[Callable[[Any], bool], str]] = {
    "type": (_is_type, f"one of {', '.join(_TYPES)}, or a list of them"),
    "required": (_is_names, "a list of different strings"),
    "dependentRequired": (_is_map_of_names, "an object of lists of different strings"),
    "enum": (lambda value: isinstance(value, list), "a list"),
    "examples": (lambda value: isinstance(value, list), "a list"),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    **dict.fromkeys(
        _LIST_OF_SCHEMAS, (lambda value: isinstance(value, list) and bool(value), "a list with something in it")
    ),
    **dict.fromkeys(_MAP_OF_SCHEMAS, (lambda value: isinstance(value, dict), "an object")),
    **dict.fromkeys((*_COUNTS, "minProperties"), (_is_count, "a whole number from 0 on")),
    **dict.fromkeys(_NUMBERS, (_is_number, "a number")),
    **dict.fromkeys(_TEXTS, (lambda value: isinstance(value, str), "a string")),
    **dict.fromkeys(_FLAGS, (lambda value: isinstance(value, bool), "a boolean")),
}
"""Keyword -> the test of its value, and what it must be."""
