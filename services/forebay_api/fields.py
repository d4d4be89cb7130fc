"""What the bodies of several routes have in common: sampling parameters as sent, and the fields for the engine.

A field without a value is None, except where null and absent differ (`UNSET` is absent). Fields of type `Raw` stay
JSON text.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from forebay.errors import RequestError
from forebay_api.typeerrors import describe

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
Int64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]
UInt63 = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]


class Watermark(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The `watermark` sampling parameter; passed through to the engine."""

    enabled: bool | None = None
    key: str | None = None
    context_window: Int64 | None = None


class SamplingBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Sampling parameters as sent. The order of the fields is that of the error text for an unknown one."""

    max_new_tokens: Int64 | UnsetType | None = UNSET
    stop: str | list[str] | UnsetType | None = UNSET
    stop_token_ids: list[Int64] | UnsetType | None = UNSET
    stop_regex: str | list[str] | UnsetType | None = UNSET
    temperature: float | UnsetType | None = UNSET
    top_p: float | UnsetType | None = UNSET
    top_k: Int64 | UnsetType | None = UNSET
    min_p: float | UnsetType | None = UNSET
    frequency_penalty: float | UnsetType | None = UNSET
    presence_penalty: float | UnsetType | None = UNSET
    repetition_penalty: float | UnsetType | None = UNSET
    min_new_tokens: Int64 | UnsetType | None = UNSET
    n: Int64 | UnsetType | None = UNSET
    json_schema: str | UnsetType | None = UNSET
    regex: str | UnsetType | None = UNSET
    ebnf: str | UnsetType | None = UNSET
    structural_tag: str | UnsetType | None = UNSET
    ignore_eos: bool | UnsetType | None = UNSET
    skip_special_tokens: bool | UnsetType | None = UNSET
    spaces_between_special_tokens: bool | UnsetType | None = UNSET
    no_stop_trim: bool | UnsetType | None = UNSET
    stream_interval: Int64 | UnsetType | None = UNSET
    logit_bias: dict[str, float] | UnsetType | None = UNSET
    sampling_seed: int | UnsetType | None = UNSET
    custom_params: dict[str, Any] | UnsetType | None = UNSET
    beam_width: Int64 | UnsetType | None = UNSET
    watermark: Watermark | UnsetType | None = UNSET
    choice: list[str] | UnsetType | None = UNSET


class EngineFields(msgspec.Struct, kw_only=True):
    """What the native and the OpenAI generation routes have in common: ids, routing, and what is passed through."""

    rid: str | list[str] | None = None
    stream: bool | None = None
    return_hidden_states: bool | list[bool] | str | None = None
    priority: Int64 | None = None
    lora_path: str | list[str | None] | None = None
    custom_logit_processor: str | list[str | None] | None = None
    routed_dp_rank: Int64 | None = None
    data_parallel_rank: Int64 | None = None
    max_thinking_tokens: UInt63 | None = None
    log_metrics: bool | None = None
    no_logs: bool | None = None

    # Passed through to the engine by name.
    session_params: dict[str, Any] | None = None
    session_id: str | None = None
    routing_key: str | None = None
    extra_key: str | list[str | None] | None = None
    cache_salt: str | list[str | None] | None = None
    disagg_prefill_dp_rank: Int64 | list[Int64 | None] | None = None
    decode_tp_size: Int64 | list[Int64 | None] | None = None
    bootstrap_host: str | list[str | None] | None = None
    bootstrap_port: Int64 | list[Int64 | None] | None = None
    bootstrap_room: Int64 | list[Int64 | None] | None = None
    bootstrap_pair_key: str | list[str | None] | None = None
    require_reasoning: bool | None = None
    custom_labels: dict[str, str] | None = None
    conversation_id: str | None = None
    external_trace_header: dict[str, Any] | None = None
    kv_hints: dict[str, Any] | list[dict[str, Any] | None] | None = None

    # Refused unless they ask for nothing.
    return_routed_experts: bool | None = None
    routed_experts_start_len: Int64 | None = None
    return_indexer_topk: bool | None = None
    return_sampling_mask: bool | None = None
    sampling_logprobs_mode: str | None = None
    return_entropy: bool | None = None
    return_flat_raw_top_logprobs: bool | None = None
    return_flat_raw_top_logprobs_b64: bool | None = None
    return_flat_raw_output_top_logprobs: bool | None = None
    return_flat_raw_output_top_logprobs_b64: bool | None = None

    # Refused when there is anything in them.
    image_data: Raw | UnsetType = UNSET
    video_data: Raw | UnsetType = UNSET
    audio_data: Raw | UnsetType = UNSET
    mm_hashes: Raw | UnsetType = UNSET
    mm_content_hashes: Raw | UnsetType = UNSET


SAMPLING_TITLES = {
    "sampling_params": ("SamplingParams", SamplingBody.__struct_fields__),
    "watermark": ("Watermark", Watermark.__struct_fields__),
}


def present(raw: Raw | UnsetType) -> bytes | None:
    """The JSON text of an optional raw field; None when it is absent or null."""
    if raw is UNSET:
        return None
    text = bytes(raw)
    return None if text == b"null" else text


def check_integers(value: Any, param: str) -> None:
    """Raise `RequestError` (400) for an integer that does not fit 64 bits, anywhere in an opaque value."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            check_integers(item, param)
    elif isinstance(value, int) and not INT64_MIN <= value < 1 << 64:
        raise RequestError(f"invalid value: {describe(value)}, expected i64", param=param)
