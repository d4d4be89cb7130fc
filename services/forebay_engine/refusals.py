"""Says which requests the engines refuse. Pure: a request in, a reason out; nothing is ever ignored silently."""

from __future__ import annotations

from forebay import GenerateRequest, RequestError

GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")
HARMLESS = frozenset(
    {
        "cache_salt",
        "conversation_id",
        "custom_labels",
        "external_trace_header",
        "extra_key",
        "kv_hints",
        "log_metrics",
        "no_logs",
        "routed_dp_rank",
        "routing_key",
        "user",
    }
)
"""Extra fields that change nothing in the answer of a single engine without a shared cache."""


def refuse(request: GenerateRequest, *, vocab: int, context: int, capacity: int, engine_stops: bool) -> None:
    """Raise `RequestError` for a request that cannot be served.

    `context` and `capacity` are the tokens of the model's context and of the cache; `engine_stops`: stop strings
    are looked for in the engine.
    """
    if field := unsupported_field(request):
        raise RequestError(f"{field} is not supported by this engine", param=field)
    if engine_stops and request.sampling.stop_regex:
        raise RequestError("stop_regex is not supported when the engine looks for stops", param="stop_regex")
    _check_ids(request, vocab)
    _check_lengths(request, context, capacity)


def unsupported_field(request: GenerateRequest) -> str | None:
    """The first field of a request that asks for something no engine here can do."""
    sampling = request.sampling
    for name in GRAMMARS:
        if getattr(sampling, name) is not None:
            return name
    if sampling.custom_params is not None:
        return "custom_params"
    if request.lora_path is not None:
        return "lora_path"
    for name, value in (request.extra or {}).items():
        if name not in HARMLESS and value not in (None, False, [], {}, ""):
            return name
    return None


def _check_ids(request: GenerateRequest, vocab: int) -> None:
    ids = request.input_ids
    if not ids:
        raise RequestError("input_ids cannot be empty.", param="input_ids")
    if min(ids) < 0 or max(ids) >= vocab:
        raise RequestError(f"input_ids must be in [0, {vocab - 1}]", param="input_ids")
    for name, values in (
        ("logit_bias", request.sampling.logit_bias or ()),
        ("token_ids_logprob", request.token_ids_logprob or ()),
    ):
        if any(not 0 <= number < vocab for number in values):
            raise RequestError(f"{name} must have ids in [0, {vocab - 1}]", param=name)


def _check_lengths(request: GenerateRequest, context: int, capacity: int) -> None:
    prompt = len(request.input_ids)
    room = 0 if request.sampling.max_new_tokens == 0 else 1
    if prompt + room > context:
        raise RequestError(f"The input ({prompt} tokens) is longer than the model's context length ({context} tokens).")
    if prompt + room > capacity:
        raise RequestError(
            f"The input ({prompt} tokens) does not fit the engine's cache ({capacity} tokens): "
            "raise engine_cache_tokens or send a shorter prompt"
        )
    if request.return_logprob and request.logprob_start_len > prompt:
        raise RequestError(
            f"logprob_start_len ({request.logprob_start_len}) is larger than the number of prompt tokens ({prompt})",
            param="logprob_start_len",
        )
