"""A chat's messages: from the client's JSON to the plain dicts that templates read, checked on the way. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from forebay.errors import RequestError
from forebay_tokenizer.traits import Traits

T = TypeVar("T")
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class Part(msgspec.Struct):
    """One part of a content list."""

    type: str
    text: str | None = None
    refusal: str | None = None
    thinking: str | None = None
    reasoning: str | None = None


class Function(msgspec.Struct):
    """The function of a call: its arguments as JSON text, as OpenAI clients send them, or as an object."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct):
    """A call that the assistant made."""

    function: Function
    id: str | None = None
    type: str | None = None


class Message(msgspec.Struct):
    """One message as clients send it; other fields mean nothing to a template and are left out."""

    role: str
    content: str | list[Part | str] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


def _reader(type_: type[T]) -> Callable[[bytes, str], T]:
    decode = msgspec.json.Decoder(type_).decode

    def read(raw: bytes, field: str) -> T:
        try:
            return decode(raw)
        except msgspec.ValidationError as error:
            raise _wrong_type(str(error), field) from error
        except msgspec.DecodeError as error:
            raise RequestError(f"{field} is not valid JSON: {error}", param=field) from error
        except RecursionError as error:
            raise RequestError(f"{field} is nested too deeply", param=field) from error

    read.__doc__ = f"JSON text of a request's field as {type_}; raises `RequestError` 400."
    return read


def _wrong_type(reason: str, field: str) -> RequestError:
    """`Expected ..., got ... - at $[0].content` with the field's own name, and its dotted path as the parameter."""
    text, _, path = reason.partition(" - at `$")
    place = field + path.rstrip("`")
    return RequestError(f"{place}: {text}", param=re.sub(r"\[(\w+|\.\.\.)\]", r".\1", place))


read_messages = _reader(list[Message])
read_tools = _reader(list[dict[str, Any]])
read_object = _reader(dict[str, Any])


def conversation(messages: list[Message], traits: Traits) -> list[dict[str, Any]]:
    """The messages as a template with these traits reads them; raises `RequestError` 400."""
    if not messages:
        raise RequestError("Messages cannot be empty.", param="messages")
    return [_message(message, f"messages.{at}", traits) for at, message in enumerate(messages)]


def text_of(message: dict[str, Any]) -> str:
    """The content of a message made by `conversation` as one text."""
    content = message["content"]
    return content if isinstance(content, str) else " ".join(part["text"] for part in content)


def _message(message: Message, where: str, traits: Traits) -> dict[str, Any]:
    role = message.role.lower()
    if role not in ROLES:
        raise RequestError(
            f"Unknown role '{message.role[:80]}': a role is one of {', '.join(ROLES)}.", param=f"{where}.role"
        )
    if role == "user" and message.content is None:
        raise RequestError("A message of the user must have a content.", param=f"{where}.content")
    thoughts: list[str] = []
    out: dict[str, Any] = {
        "role": "system" if role == "developer" and not traits.developer else role,
        "content": _content(message.content, role, thoughts, f"{where}.content", traits),
    }
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            out[name] = value
    if role == "assistant":
        _add_assistant_fields(out, message, thoughts, where)
    return out


def _add_assistant_fields(out: dict[str, Any], message: Message, thoughts: list[str], where: str) -> None:
    reasoning = message.reasoning_content if message.reasoning_content is not None else message.reasoning
    if reasoning is None and thoughts:
        reasoning = "\n".join(thoughts)
    if reasoning is not None:
        # Templates read it under one name or the other.
        out["reasoning_content"] = out["reasoning"] = reasoning
    if message.tool_calls:
        out["tool_calls"] = [
            _call(call, f"{where}.tool_calls.{at}.function.arguments") for at, call in enumerate(message.tool_calls)
        ]


def _content(
    content: str | list[Part | str] | None, role: str, thoughts: list[str], where: str, traits: Traits
) -> str | list[dict[str, str]]:
    """A content in the form that the template takes. Null, an empty list and an empty text are one and the same.

    The reasoning parts of an assistant go to `thoughts`. Without parts in the template, texts are joined with a space.
    """
    if isinstance(content, list):
        texts = _texts(content, role, thoughts, where)
        if texts and traits.parts:
            return [{"type": "text", "text": text} for text in texts]
        content = " ".join(texts)
    text = content or ""
    return text if traits.text else [{"type": "text", "text": text}]


def _texts(parts: list[Part | str], role: str, thoughts: list[str], where: str) -> list[str]:
    texts = []
    for at, part in enumerate(parts):
        if isinstance(part, str):
            texts.append(part)
            continue
        thinking = role == "assistant" and part.type in ("thinking", "reasoning")
        if not thinking and part.type not in ("text", "refusal"):
            raise RequestError(
                f"Model only supports text input; received unsupported content type '{part.type[:80]}'.",
                param=f"{where}.{at}.type",
            )
        text: str | None = getattr(part, part.type)
        if text is None:
            text = part.text
        if text is None:
            raise RequestError(f"A content part of type '{part.type}' must have its text.", param=f"{where}.{at}")
        (thoughts if thinking else texts).append(text)
    return texts


def _call(call: ToolCall, where: str) -> dict[str, Any]:
    arguments = call.function.arguments
    if isinstance(arguments, str):
        # Models write nothing at all for a function without parameters.
        arguments = read_object(arguments.encode(), where) if arguments.strip() else {}
    out: dict[str, Any] = {"type": "function", "function": {"name": call.function.name, "arguments": arguments or {}}}
    if call.id is not None:
        out["id"] = call.id
    return out
