"""Stand-ins for the SGLang classes that requests are made of: the fields that the adapter sets, with their defaults."""

from __future__ import annotations

from typing import Any

import msgspec

from forebay_engine.adapters.sglang_requests import Types


class SamplingParams(msgspec.Struct, kw_only=True):
    max_new_tokens: int | None
    stop_token_ids: set[int] | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    min_new_tokens: int
    json_schema: str | None
    regex: str | None
    ebnf: str | None
    structural_tag: str | None
    ignore_eos: bool
    skip_special_tokens: bool
    spaces_between_special_tokens: bool
    no_stop_trim: bool
    stream_interval: int | None
    logit_bias: dict[str, float] | None
    sampling_seed: int | None
    custom_params: Any
    stop_strs: list[str]
    stop_regex_strs: list[str]
    stop_str_max_len: int
    stop_regex_max_len: int
    is_normalized: bool


class Generate(msgspec.Struct, kw_only=True):
    rid: str
    input_text: None
    input_ids: Any
    input_embeds: None
    mm_inputs: None
    token_type_ids: None
    sampling_params: SamplingParams
    return_logprob: bool
    logprob_start_len: int
    top_logprobs_num: int
    token_ids_logprob: list[int] | None
    stream: bool
    return_hidden_states: bool
    priority: int | None
    session_params: Any = None
    session_id: str | None = None
    lora_id: str | None = None
    lora_name: str | None = None
    routing_key: str | None = None
    cache_salt: str | None = None
    kv_hints: Any = None


class SessionParams(msgspec.Struct, kw_only=True):
    id: str | None = None
    offset: int | None = None


class AbortReq(msgspec.Struct, kw_only=True):
    rid: str
    abort_all: bool = False


class FlushCacheReqInput(msgspec.Struct, kw_only=True):
    rid: str
    timeout_s: float | None = None


class GetInternalStateReq(msgspec.Struct, kw_only=True):
    rid: str


class FreezeGCReq(msgspec.Struct, kw_only=True):
    rid: str


class FlushCacheReqOutput(msgspec.Struct, kw_only=True):
    rid: str | None = None
    http_worker_ipc: str | None = None
    success: bool
    message: str = ""


class GetInternalStateReqOutput(msgspec.Struct, kw_only=True):
    rid: str | None = None
    http_worker_ipc: str | None = None
    internal_state: dict[str, Any]


CONTROLS = {made.__name__: made for made in (FlushCacheReqInput, GetInternalStateReq, FreezeGCReq)}
TYPES = Types(Generate, SamplingParams, SessionParams, AbortReq, SessionParams, CONTROLS)
