"""Fields that are not forebay's own business: passed on to the engine by name, allowed by its facts, or refused.

Nothing is dropped in silence: what is not passed on and not honoured is refused with its name.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from forebay.errors import RequestError
from forebay_api.batch import list_with_samples, per_item
from forebay_api.fields import EngineFields, check_integers
from forebay_api.openai_bodies import ChatBody, CompletionBody
from forebay_api.plan import AdmissionContext, HeaderFields
from forebay_api.schemas import GenerateBody
from forebay_api.typeerrors import clipped, describe, wrong_type

_PASSED = (
    "session_params",
    "session_id",
    "routing_key",
    "require_reasoning",
    "custom_labels",
    "conversation_id",
    "external_trace_header",
)
_PASSED_PER_ITEM = (
    "custom_logit_processor",
    "extra_key",
    "cache_salt",
    "disagg_prefill_dp_rank",
    "decode_tp_size",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "bootstrap_pair_key",
    "kv_hints",
)
_OPAQUE = {"session_params", "external_trace_header", "kv_hints"}
_NOT_HERE = (
    "return_routed_experts",
    "routed_experts_start_len",
    "return_indexer_topk",
    "return_sampling_mask",
    "sampling_logprobs_mode",
    "return_entropy",
    "return_flat_raw_top_logprobs",
    "return_flat_raw_top_logprobs_b64",
    "return_flat_raw_output_top_logprobs",
    "return_flat_raw_output_top_logprobs_b64",
)
"""Answered 501: engines may have them, the wire has not."""
_MEDIA = ("image_data", "video_data", "audio_data", "mm_hashes", "mm_content_hashes")
_NOT_OPENAI = (
    "use_beam_search",
    "prompt_embeds",
    "return_tokens_as_token_ids",
    "return_cached_tokens_details",
    "return_input_ids_in_sglext",
    "return_output_ids_in_sglext",
    "audio",
    "prediction",
    "web_search_options",
    "function_call",
    "functions",
)
_NOT_OPENAI_HERE = ("allowed_token_ids", "bad_words")
_EMPTY = (b"null", b"[]", b"{}", b'""', b"false")
_ASKS_WHEN_EMPTY = ("web_search_options",)
"""An empty object switches it on with its defaults: `"web_search_options": {}` is how OpenAI's examples ask for it."""


class _Watched(NamedTuple):
    """The fields of a body that are refused when they ask for something, and those that are passed on."""

    refused: Any
    passed: Any
    plain: tuple[Any, ...]
    silent: tuple[Any, ...]
    names: tuple[tuple[str, int], ...]


def _watch(body: EngineFields, bad: tuple[str, ...], not_here: tuple[str, ...]) -> _Watched:
    names = tuple((name, 400) for name in bad + _MEDIA) + tuple((name, 501) for name in _NOT_HERE + not_here)
    refused = attrgetter(*(name for name, _ in names))
    passed = attrgetter(*_PASSED, *_PASSED_PER_ITEM)
    return _Watched(refused, passed, refused(body), passed(body), names)


_WATCHED: dict[type, _Watched] = {
    GenerateBody: _watch(GenerateBody(), ("modalities",), ("input_embeds",)),
    CompletionBody: _watch(CompletionBody(), _NOT_OPENAI, _NOT_OPENAI_HERE),
    ChatBody: _watch(ChatBody(), (*_NOT_OPENAI, "return_meta_info", "echo"), _NOT_OPENAI_HERE),
}


def refuse_unsupported(body: EngineFields) -> None:
    """Raise `RequestError` (400 or 501) for a field that asks for what this front does not do."""
    watched = _WATCHED[type(body)]
    values = watched.refused(body)
    if values == watched.plain:
        return
    for (name, status), value in zip(watched.names, values, strict=True):
        if not (_asks(value) or (name in _ASKS_WHEN_EMPTY and _is_object(value))):
            continue
        if name in _MEDIA or name == "modalities":
            raise RequestError(f"Model only supports text input; `{name}` is not supported", param=name)
        raise RequestError(f"{name} is not supported", status, param=name)


def _asks(value: Any) -> bool:
    if isinstance(value, Raw):
        text = bytes(value)
        return text not in _EMPTY and (len(text) > 8 or bool(msgspec.json.decode(text)))
    return bool(value)  # UNSET, null, false, 0 and "" ask for nothing


def _is_object(value: Any) -> bool:
    return isinstance(value, Raw) and bytes(value).startswith(b"{")


def passed_on(body: EngineFields, count: int, n: int, ctx: AdmissionContext, headers: HeaderFields) -> list[Any]:
    """For each prompt the fields that the engine gets by name, None where there are none. Raises `RequestError`."""
    rank = _dp_rank(body, ctx, headers)
    watched = _WATCHED[type(body)]
    if watched.passed(body) == watched.silent and rank is None and headers.routing_key is None:
        return [None] * count
    _check_passed(body, n, ctx)
    shared = {name: value for name in _PASSED if (value := getattr(body, name)) not in (None, False)}
    if rank is not None:
        shared["routed_dp_rank"] = rank
    if headers.routing_key is not None:
        shared["routing_key"] = headers.routing_key
    out: list[dict[str, Any]] = [dict(shared) for _ in range(count)]
    for name in _PASSED_PER_ITEM:
        value = getattr(body, name)
        if value is None:
            continue
        for at, one in enumerate(per_item(value, count, name)):
            if one not in (None, ""):
                # A room of the whole batch is the first of one room for each prompt.
                rooms = name == "bootstrap_room" and not isinstance(value, list)
                out[at][name] = one + at if rooms else one
    return [extra or None for extra in out]


def _check_passed(body: EngineFields, n: int, ctx: AdmissionContext) -> None:
    if body.session_params and body.session_id:
        raise RequestError("session_params and session_id cannot be used together", param="session_params")
    if body.custom_logit_processor:
        if not ctx.has_logit_processors:
            text = "custom_logit_processor is not enabled in the engine"
            raise RequestError(text, param="custom_logit_processor")
        if n > 1 and isinstance(body.custom_logit_processor, list):
            raise list_with_samples("custom_logit_processor")
    for name in _OPAQUE:
        check_integers(getattr(body, name), name)


def _dp_rank(body: EngineFields, ctx: AdmissionContext, headers: HeaderFields) -> int | None:
    """The data-parallel rank that was asked for, None when there is no choice."""
    name = "routed_dp_rank" if body.data_parallel_rank is None else "data_parallel_rank"
    rank = body.routed_dp_rank if body.routed_dp_rank is not None else body.data_parallel_rank
    if headers.data_parallel_rank is not None:
        name, text = "x-data-parallel-rank", headers.data_parallel_rank.strip()
        if not text.isdecimal() or not text.isascii() or len(text) > 9:
            raise RequestError(f"{name} must be an integer, got {describe(text)}", param=name)
        rank = int(text)
    if rank is not None and not 0 <= rank < ctx.dp_size:
        raise RequestError(f"{name}={rank} is out of range [0, {ctx.dp_size})", param=name)
    return rank if ctx.dp_size > 1 else None


def lora_paths(path: str | list[str | None] | None, count: int, ctx: AdmissionContext) -> list[str | None]:
    """The adapter of each prompt. Raises `RequestError` (400) when the engine serves none, or not this one."""
    if path is None:
        return [None] * count
    paths = [one or None for one in per_item(path, count, "lora_path")]
    asked = next((one for one in paths if one), None)
    if asked is not None and not ctx.has_lora:
        text = f"LoRA adapter '{clipped(asked)}' was requested, but LoRA is not enabled. Start the engine with LoRA."
        raise RequestError(text, param="lora_path")
    unknown = next((one for one in paths if one and ctx.adapters is not None and one not in ctx.adapters), None)
    if unknown is not None:
        loaded = ", ".join(sorted(ctx.adapters or ())) or "none"
        raise RequestError(f"LoRA adapter '{clipped(unknown)}' is not loaded; loaded: {loaded}", param="lora_path")
    return paths


def hidden_states(value: bool | list[bool] | str | None, count: int, ctx: AdmissionContext) -> list[bool]:
    """Whether each prompt gets hidden states. Raises `RequestError` when the engine gives none."""
    name = "return_hidden_states"
    if not value:
        return [False] * count
    if value == "last":
        raise RequestError(f'{name} "last" is not supported; true gives all of them', 501, param=name)
    if isinstance(value, str):
        raise wrong_type(value, "a value or an array of values for BoolOrList", name)
    wanted = per_item(value, count, name)
    if any(wanted) and not ctx.gives_hidden_states:
        raise RequestError("return_hidden_states is not enabled in the engine", param=name)
    return wanted


def thinking_budget(budget: int | None, name: str, ctx: AdmissionContext) -> dict[str, Any]:
    """The custom parameter that limits thinking. Raises `RequestError` (400) when the engine keeps no such limit."""
    if budget is None:
        return {}
    if not ctx.has_thinking_budget:
        raise RequestError(f"{name} needs an engine with strict thinking enabled", param=name)
    return {"thinking_budget": budget}
