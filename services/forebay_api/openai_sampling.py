"""The sampling parameters of the OpenAI routes under their own names: only what the client wrote, nothing filled in."""

from __future__ import annotations

from operator import attrgetter

from forebay_api.fields import SamplingBody, present
from forebay_api.grammars import only_one, response_format, structured_outputs
from forebay_api.openai_bodies import OpenAIFields

_RENAMED = {"min_tokens": "min_new_tokens", "seed": "sampling_seed"}
_FIELDS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_tokens",
    "seed",
    "logit_bias",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "ignore_eos",
    "no_stop_trim",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "custom_params",
)
_KEYS = tuple(_RENAMED.get(name, name) for name in _FIELDS)
"""The sampling key of each field."""
_values = attrgetter(*_FIELDS)


def sampling_body(body: OpenAIFields, limit: int | None) -> SamplingBody:
    """The sampling parameters that the client wrote, under our names. Null counts as not written."""
    out = SamplingBody()
    for key, value in zip(_KEYS, _values(body), strict=True):
        if value is not None:
            setattr(out, key, value)
    if body.top_k == 0:
        out.top_k = -1
    if body.include_stop_str_in_output is not None:
        out.no_stop_trim = body.include_stop_str_in_output or bool(body.no_stop_trim)
    if limit is not None:
        out.max_new_tokens = limit
    _grammar(body, out)
    return out


def _grammar(body: OpenAIFields, out: SamplingBody) -> None:
    """The one constraint that the client asked for, in whichever field, as a sampling parameter."""
    form, outputs = present(body.response_format), present(body.structured_outputs)
    if form is None and outputs is None and not (body.regex or body.ebnf or body.json_schema):
        return
    grammar = only_one(
        {
            "response_format": None if form is None else response_format(form),
            "structured_outputs": None if outputs is None else structured_outputs(outputs),
            "regex": ("regex", body.regex or ""),
            "ebnf": ("ebnf", body.ebnf or ""),
            "json_schema": ("json_schema", body.json_schema or ""),
        }
    )
    if grammar is not None:
        setattr(out, grammar[0], grammar[1])
