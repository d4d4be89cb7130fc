"""The bodies of the routes, and a reader for each: bytes in, struct out, or a `RequestError` that says what is wrong.

What the values mean is left to `admission`. Unknown members of a body are ignored, unknown sampling parameters refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from forebay_api.fields import SAMPLING_TITLES, EngineFields, Int64, SamplingBody, present
from forebay_api.jsonbody import BodyReader
from forebay_api.openai_bodies import ChatBody, CompletionBody

__all__ = [
    "AbortBody",
    "ChatBody",
    "CompletionBody",
    "DetokenizeBody",
    "GenerateBody",
    "TokenizeBody",
    "read_abort",
    "read_chat",
    "read_completion",
    "read_detokenize",
    "read_generate",
    "read_tokenize",
]

T = TypeVar("T", bound=msgspec.Struct)


class GenerateBody(EngineFields, kw_only=True):
    """`POST /generate`."""

    text: str | list[str] | None = None
    input_ids: list[Int64 | list[Int64]] | None = None
    sampling_params: SamplingBody | list[SamplingBody] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: Int64 | list[Int64] | None = None
    top_logprobs_num: Int64 | list[Int64] | None = None
    token_ids_logprob: list[Int64 | list[Int64] | None] | None = None
    return_text_in_logprobs: bool | None = None
    return_prompt_token_ids: bool = False
    stream_output: bool | None = None
    input_embeds: Raw | UnsetType = UNSET
    modalities: Raw | UnsetType = UNSET


class TokenizeBody(msgspec.Struct, kw_only=True):
    """`POST /tokenize`. The texts of `Raw` fields go to the tokenizer process as they are."""

    prompt: str | list[str] | None = None
    messages: Raw | UnsetType = UNSET
    model: str | None = None
    add_special_tokens: bool | None = None
    tools: Raw | UnsetType = UNSET
    tool_choice: str | dict[str, Any] | None = None
    chat_template_kwargs: Raw | UnsetType = UNSET
    continue_final_message: bool | None = None
    reasoning_effort: str | float | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """`POST /detokenize`."""

    tokens: list[Int64 | list[Int64]] | None = None
    skip_special_tokens: bool | None = None
    model: str | None = None


class AbortBody(msgspec.Struct, kw_only=True):
    """`POST /abort_request`."""

    rid: str | None = None
    abort_all: bool | None = None


class Abort(NamedTuple):
    """What `/abort_request` is to end; an empty `rid` names nothing."""

    rid: str
    abort_all: bool


def _reader(body: type[T], title: str) -> Callable[[bytes], T]:
    return BodyReader(body, SAMPLING_TITLES | {"": (title, body.__struct_fields__)}).read


read_generate = _reader(GenerateBody, "GenerateRequest")
read_completion = _reader(CompletionBody, "CompletionRequest")
read_chat = _reader(ChatBody, "ChatCompletionRequest")
read_detokenize = _reader(DetokenizeBody, "DetokenizeRequest")
_read_abort = _reader(AbortBody, "AbortRequest")
_read_tokenize = _reader(TokenizeBody, "TokenizeRequest")


def read_tokenize(body: bytes) -> TokenizeBody:
    """The body of `/tokenize`; what is null counts as absent."""
    read = _read_tokenize(body)
    for name in ("messages", "tools", "chat_template_kwargs"):
        if present(getattr(read, name)) is None:
            setattr(read, name, UNSET)
    return read


def read_abort(body: bytes) -> Abort:
    """The body of `/abort_request`."""
    read = _read_abort(body)
    return Abort(read.rid or "", bool(read.abort_all))
