"""The bodies of the OpenAI generation routes. Null and absent are the same here.

Big parts (messages, tools, template variables, response format) stay JSON text: the tokenizer process reads them.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from forebay_api.fields import EngineFields, Int64, UInt63


class StreamOptions(msgspec.Struct, kw_only=True):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Reasoning(msgspec.Struct, kw_only=True):
    """The object form of the reasoning effort."""

    effort: str | float | None = None
    enabled: bool | None = None


class OpenAIFields(EngineFields, kw_only=True):
    """What completions and chat completions share."""

    model: str | None = None
    stream_options: StreamOptions | None = None
    n: Int64 | None = None
    max_tokens: Int64 | None = None
    min_tokens: Int64 | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int64] | None = None
    stop_regex: str | list[str] | None = None
    ignore_eos: bool | None = None
    no_stop_trim: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    custom_params: dict[str, Any] | None = None
    response_format: Raw | UnsetType = UNSET
    structured_outputs: Raw | UnsetType = UNSET
    regex: str | None = None
    ebnf: str | None = None
    json_schema: str | None = None
    request_id: str | None = None
    return_token_ids: bool | None = None
    truncate_prompt_tokens: Int64 | None = None

    # Refused unless they ask for nothing.
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    prompt_logprobs: Int64 | None = None
    return_tokens_as_token_ids: bool | None = None
    return_cached_tokens_details: bool | None = None
    return_input_ids_in_sglext: bool | None = None
    return_output_ids_in_sglext: bool | None = None
    allowed_token_ids: Raw | UnsetType = UNSET
    bad_words: Raw | UnsetType = UNSET
    prompt_embeds: Raw | UnsetType = UNSET
    modalities: list[str] | None = None
    audio: Raw | UnsetType = UNSET
    prediction: Raw | UnsetType = UNSET
    web_search_options: Raw | UnsetType = UNSET
    function_call: Raw | UnsetType = UNSET
    functions: Raw | UnsetType = UNSET


class CompletionBody(OpenAIFields, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[str | Int64 | list[Int64]] | None = None
    logprobs: Int64 | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Int64 | None = None
    add_special_tokens: bool | None = None


class ChatBody(OpenAIFields, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Raw | UnsetType = UNSET
    max_completion_tokens: Int64 | None = None
    logprobs: bool | None = None
    top_logprobs: Int64 | None = None
    tools: Raw | UnsetType = UNSET
    tool_choice: Raw | UnsetType = UNSET
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | float | None = None
    reasoning: Reasoning | None = None
    chat_template: str | None = None
    chat_template_kwargs: Raw | UnsetType = UNSET
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    include_reasoning: bool | None = None
    input_ids: list[Int64] | None = None
    return_prompt_token_ids: bool | None = None
    thinking_token_budget: UInt63 | None = None

    # Refused unless they ask for nothing.
    return_meta_info: bool | None = None
    echo: bool | None = None
