"""Tools of a chat: the checks of their form, and of `tool_choice` against them.

The tools themselves go to the chat template as the client sent them. Parsing calls out of the model's text needs a
parser for its format; there is none yet, so what would need one is refused.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from forebay.errors import RequestError
from forebay_api.json_schema import schema_fault
from forebay_api.jsonbody import decoded
from forebay_api.typeerrors import clipped, describe, wrong_type

CACHED_BYTES = 1 << 16
"""Agents send the same tools with every turn; lists up to this size are checked once."""


class _Function(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None


class _Tool(msgspec.Struct, kw_only=True):
    function: _Function
    type: str = "function"


class _Named(msgspec.Struct):
    name: str


class _ToolChoice(msgspec.Struct, kw_only=True):
    function: _Named
    type: str = "function"


_TOOLS = msgspec.json.Decoder(list[_Tool])
_CHOICE = msgspec.json.Decoder(str | _ToolChoice)


def offered_tools(tools: bytes | None, tool_choice: bytes | None) -> bytes | None:
    """The tools that the template shows, as JSON text; None without any, or when the client wants none used.

    Raises `RequestError` (400).
    """
    names = _tool_names(tools) if tools is not None else frozenset()
    choice = decoded(_CHOICE, tool_choice, {}, "tool_choice") if tool_choice is not None else "auto"
    if isinstance(choice, _ToolChoice):
        _check_named(choice, names)
    elif choice not in ("none", "auto", "required"):
        raise RequestError(f"tool_choice cannot be {describe(choice)}", param="tool_choice")
    elif choice == "required":
        if not names:
            raise RequestError("tool_choice 'required' needs tools", param="tool_choice")
        raise _unsupported("'required'")
    return tools if names and choice != "none" else None


def _check_named(choice: _ToolChoice, names: frozenset[str]) -> None:
    name = clipped(choice.function.name)
    if choice.type != "function":
        raise RequestError(f"tool_choice cannot have the type {describe(choice.type)}", param="tool_choice.type")
    if not names:
        raise RequestError(f"tool_choice names the tool '{name}', but there are no tools", param="tool_choice")
    if choice.function.name not in names:
        raise RequestError(f"Tool '{name}' not found in tools list.", param="tool_choice")
    raise _unsupported("a named tool")


def _unsupported(what: str) -> RequestError:
    text = f"tool_choice {what} is not supported by this server: it has no tool call parser; use 'auto' or 'none'"
    return RequestError(text, param="tool_choice")


def _tool_names(tools: bytes) -> frozenset[str]:
    return _cached_names(tools) if len(tools) <= CACHED_BYTES else _check_tools(tools)


@lru_cache(maxsize=64)
def _cached_names(tools: bytes) -> frozenset[str]:
    return _check_tools(tools)


def _check_tools(text: bytes) -> frozenset[str]:
    """The names of the tools after all checks of their form."""
    tools: list[_Tool] = decoded(_TOOLS, text, {}, "tools")
    names: set[str] = set()
    for at, tool in enumerate(tools):
        if tool.type != "function":
            raise RequestError(f"tools cannot have the type {describe(tool.type)}", param=f"tools.{at}.type")
        name = tool.function.name
        if not name or name in names:
            text_ = f"Tool {at} has the name '{clipped(name)}', which " + (
                "an earlier tool has" if name else "is empty"
            )
            raise RequestError(text_, param=f"tools.{at}.function.name")
        names.add(name)
        _check_parameters(tool.function.parameters, at)
    return frozenset(names)


def _check_parameters(schema: Any, at: int) -> None:
    param = f"tools.{at}.function.parameters"
    if schema is None:
        return
    if not isinstance(schema, dict):
        raise wrong_type(schema, "a map", param)
    if (fault := schema_fault(schema)) is not None:
        raise RequestError(f"Tool {at} function has invalid 'parameters' schema: {fault}", param=param)
