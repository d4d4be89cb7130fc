"""From sampling parameters as sent to those the engine gets: precedence, defaults, normalisation, range checks.

Precedence: the request (even null) > the operator's preferred parameters > the model's defaults (chat only) > the
table in `_fill`. The order of the checks and their texts are fixed: the first failure decides the answer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from forebay.errors import RequestError, SettingsError
from forebay.stop_patterns import check_together
from forebay.wire.messages import ALL_TOKENS, SamplingParams
from forebay_api.fields import INT64_MAX, INT64_MIN, SAMPLING_TITLES, SamplingBody, check_integers
from forebay_api.grammars import check_grammars
from forebay_api.jsonbody import BodyReader
from forebay_api.regex_bound import stop_regex_bound
from forebay_api.typeerrors import clipped

MAX_STOPS = 32
MAX_STOP_CHARS = 1024
GREEDY_BELOW = 1e-6
_MODEL_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_READER: BodyReader[SamplingBody] = BodyReader(SamplingBody, SAMPLING_TITLES | {"": SAMPLING_TITLES["sampling_params"]})
_RANGES: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("temperature", "must be a non-negative finite number", lambda v: v >= 0 and math.isfinite(v)),
    ("top_p", "must be in (0, 1]", lambda v: 0 < v <= 1),
    ("min_p", "must be in [0, 1]", lambda v: 0 <= v <= 1),
    ("top_k", "must be -1 (disable) or at least 1", lambda v: v >= 1),
    ("frequency_penalty", "must be in [-2, 2]", lambda v: -2 <= v <= 2),
    ("presence_penalty", "must be in [-2, 2]", lambda v: -2 <= v <= 2),
    ("repetition_penalty", "must be in (0, 2] (1.0 = no penalty)", lambda v: 0 < v <= 2),
    ("min_new_tokens", "must be in [0, max_new_tokens]", lambda v: v >= 0),
    ("max_new_tokens", "must be at least 0", lambda v: v is None or v >= 0),
)
"""Key, what it must be, and the test of it, in the order of the checks."""

_LONG = (
    "stop",
    "stop_token_ids",
    "stop_regex",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "sampling_seed",
    "logit_bias",
    "custom_params",
    "watermark",
    "choice",
)
"""What differs from request to request, or is long: bodies with any of these are not remembered."""
_SHORT = tuple(name for name in SamplingBody.__struct_fields__ if name not in _LONG)
_long, _short = attrgetter(*_LONG), attrgetter(*_SHORT)
_NO_LONG = _long(SamplingBody())
MAX_KNOWN = 256

T = TypeVar("T")
Layer = Mapping[str, Any]
"""What a level of the precedence sets: keys with their values."""


@dataclass(frozen=True, slots=True)
class SamplingRules:
    """What the sampling parameters of one route depend on."""

    max_new_tokens: int | None = 128
    """Default of the route; None: until the context ends."""
    layers: tuple[Layer, ...] = ()
    """The levels below the request, highest first."""
    vocab_size: int | None = None
    max_n: int = 128
    has_tokenizer: bool = True
    prefix: str = ""
    """Goes before a key in `RequestError.param`."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """What the route calls a key, where that differs."""
    known: dict[tuple[Any, ...], SamplingParams] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What `normalise` has made of bodies of a few numbers: clients send the same ones again and again."""

    def refusal(self, key: str, message: str) -> RequestError:
        """The 400 for the value of `key`."""
        return RequestError(message, param=self.prefix + self.renamed.get(key, key))

    @property
    def last_id(self) -> int:
        """The highest token id; without a known vocabulary, the highest that any engine can take."""
        return (self.vocab_size or 1 << 31) - 1


def layer(params: Mapping[str, Any] | None, source: str) -> Layer:
    """Parameters set by the operator, checked as a request's are. Raises `SettingsError` naming `source`."""
    if not params:
        return {}
    try:
        body = _READER.read(msgspec.json.encode(dict(params)))
        rules = SamplingRules(max_new_tokens=None, max_n=INT64_MAX)
        samples(body, rules)
        normalise(body, rules)
    except RequestError as error:
        raise SettingsError(f"{source}: {error.message}") from error
    return {name: getattr(body, name) for name in params}


def model_layer(params: Mapping[str, Any] | None) -> Layer:
    """The model's own defaults (its generation_config.json): the keys that count, `top_k` 0 meaning all tokens."""
    known = {name: value for name, value in (params or {}).items() if name in _MODEL_KEYS and value is not None}
    if known.get("top_k") == 0:
        known["top_k"] = -1
    return layer(known, "default_sampling_params")


def written(body: SamplingBody, key: str, rules: SamplingRules) -> Any:
    """The value of one key by the precedence, None when nobody has set it."""
    value = getattr(body, key)
    for keys in rules.layers:
        value = keys.get(key, UNSET) if value is UNSET else value
    return None if value is UNSET else value


def samples(body: SamplingBody, rules: SamplingRules) -> int:
    """`n`, the number of samples of each prompt, checked: nothing may be allocated before."""
    n = written(body, "n", rules)
    n = 1 if n is None else n
    if not 1 <= n <= rules.max_n:
        raise rules.refusal("n", f"n must be in [1, {rules.max_n}], got {n}.")
    return n


def normalise(body: SamplingBody, rules: SamplingRules) -> SamplingParams:
    """The parameters as the engine gets them, `n` left at 1. Raises `RequestError` (400)."""
    if _long(body) != _NO_LONG:
        return _normalised(body, rules)
    key = _short(body)
    known = rules.known.get(key)
    if known is None:
        known = _normalised(body, rules)
        if len(rules.known) >= MAX_KNOWN:
            rules.known.clear()
        rules.known[key] = known
    return msgspec.structs.replace(known)


def _normalised(body: SamplingBody, rules: SamplingRules) -> SamplingParams:
    body = _with_layers(body, rules.layers)
    params = _fill(body, rules)
    if 0 <= params.temperature < GREEDY_BELOW:
        params.temperature, params.top_k = 1.0, 1
    if params.top_k == -1:
        params.top_k = ALL_TOKENS
    _check_stops(params, rules)
    if _or(body.beam_width, 1) != 1:
        text = f"beam_width must be 1 (beam search is not supported), got {body.beam_width}"
        raise rules.refusal("beam_width", text)
    _check_ranges(params, rules)
    _check_ids(params, body, rules)
    _check_seed_and_grammars(params, body, rules)
    if not rules.has_tokenizer:
        _refuse_text_rules(params, rules)
    return params


def _with_layers(body: SamplingBody, layers: tuple[Layer, ...]) -> SamplingBody:
    merged = body
    for keys in layers:
        for name, value in keys.items():
            if getattr(merged, name) is UNSET:
                merged = copy.copy(body) if merged is body else merged
                setattr(merged, name, value)
    return merged


def _or(value: T | UnsetType | None, default: T) -> T:
    return default if value is None or value is UNSET else value


def _fill(body: SamplingBody, rules: SamplingRules) -> SamplingParams:
    """The values sent, and the table of defaults for the others."""
    limit = body.max_new_tokens
    return SamplingParams(
        max_new_tokens=rules.max_new_tokens if limit is None or limit is UNSET else limit,
        min_new_tokens=_or(body.min_new_tokens, 0),
        temperature=_or(body.temperature, 1.0),
        top_p=_or(body.top_p, 1.0),
        top_k=_or(body.top_k, -1),
        min_p=_or(body.min_p, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        stop=_listed(body.stop),
        stop_token_ids=sorted(set(_or(body.stop_token_ids, []))),
        stop_regex=_listed(body.stop_regex),
        ignore_eos=_or(body.ignore_eos, False),
        no_stop_trim=_or(body.no_stop_trim, False),
        skip_special_tokens=_or(body.skip_special_tokens, True),
        spaces_between_special_tokens=_or(body.spaces_between_special_tokens, True),
        stream_interval=_or(body.stream_interval, None),
        custom_params=_or(body.custom_params, None),
    )


def _listed(value: str | list[str] | UnsetType | None) -> list[str]:
    if isinstance(value, str):
        return [value]
    return _or(value, [])


def _check_stops(params: SamplingParams, rules: SamplingRules) -> None:
    """Counts and contents of the stop strings and patterns; they come before the ranges."""
    if len(params.stop) > MAX_STOPS:
        text = f"at most {MAX_STOPS} stop strings are allowed, got {len(params.stop)}"
        raise rules.refusal("stop", text)
    if "" in params.stop:
        raise rules.refusal("stop", "stop cannot contain an empty string.")
    longest = max(map(len, params.stop), default=0)
    if longest > MAX_STOP_CHARS:
        text = f"stop strings may have at most {MAX_STOP_CHARS} characters, got one of {longest}."
        raise rules.refusal("stop", text)
    if not params.stop_regex:
        return
    if len(params.stop_regex) > MAX_STOPS:
        text = f"at most {MAX_STOPS} stop_regex patterns are allowed, got {len(params.stop_regex)}"
        raise rules.refusal("stop_regex", text)
    if "" in params.stop_regex:
        raise rules.refusal("stop_regex", "stop_regex cannot contain an empty string.")
    try:
        params.stop_regex_max_len = max(map(stop_regex_bound, params.stop_regex))
        check_together(params.stop_regex)
    except RequestError as error:
        raise rules.refusal("stop_regex", error.message) from error


def _check_ranges(params: SamplingParams, rules: SamplingRules) -> None:
    for key, must, holds in _RANGES:
        value = getattr(params, key)
        if not holds(value):
            raise rules.refusal(key, f"{key} {must}, got {_number(value)}.")
    limit = params.max_new_tokens
    if limit is not None and params.min_new_tokens > limit:
        text = f"min_new_tokens must be in [0, max_new_tokens({limit})], got {params.min_new_tokens}."
        raise rules.refusal("min_new_tokens", text)


def _check_ids(params: SamplingParams, body: SamplingBody, rules: SamplingRules) -> None:
    """Token ids and what hangs on them."""
    if body.logit_bias:
        params.logit_bias = {_bias_id(key, rules): value for key, value in body.logit_bias.items()}
    for token in params.stop_token_ids:
        if not 0 <= token <= rules.last_id:
            text = f"stop_token_ids must be in [0, {rules.last_id}], got {token}."
            raise rules.refusal("stop_token_ids", text)


def _bias_id(key: str, rules: SamplingRules) -> int:
    if key.isascii() and key.isdigit() and len(key) < 20 and int(key) <= rules.last_id:
        return int(key)
    raise rules.refusal("logit_bias", f"logit_bias must has keys in [0, {rules.last_id}], got {clipped(key)}.")


def _check_seed_and_grammars(params: SamplingParams, body: SamplingBody, rules: SamplingRules) -> None:
    params.sampling_seed = seed = _or(body.sampling_seed, None)
    if seed is not None and not INT64_MIN <= seed <= INT64_MAX:
        text = f"sampling_seed must be in [-2**63, 2**63 - 1], got {clipped(str(seed))}."
        raise rules.refusal("sampling_seed", text)
    asked = (body.json_schema, body.regex, body.ebnf, body.structural_tag)
    if body.choice or any(asked):  # UNSET, null and "" are false
        params.json_schema, params.regex, params.ebnf, params.structural_tag = check_grammars(
            [value or None for value in asked], body.choice or [], rules.prefix
        )
    if params.stream_interval is not None and params.stream_interval < 1:
        text = f"stream_interval must be at least 1, got {params.stream_interval}."
        raise rules.refusal("stream_interval", text)
    if params.custom_params is not None:
        _check_custom(params.custom_params, rules)


def _check_custom(values: dict[str, Any], rules: SamplingRules) -> None:
    for key, value in values.items():
        if isinstance(value, list) and any(isinstance(item, list | dict) for item in value):
            text = f"custom_params must hold scalars, lists of scalars, or objects; `{clipped(key)}` is none of them"
            raise rules.refusal("custom_params", text)
    check_integers(values, rules.prefix + "custom_params")


def _refuse_text_rules(params: SamplingParams, rules: SamplingRules) -> None:
    """What needs text or special ids, in a front that runs without a tokenizer."""
    for key in ("stop", "stop_regex", "min_new_tokens"):
        if value := getattr(params, key):
            raise rules.refusal(key, f"{key}={clipped(repr(value))} is unavailable when skip_tokenizer_init=True")


def _number(value: float) -> str:
    """A number as a client writes it: `2` for 2.0."""
    return str(int(value)) if math.isfinite(value) and value == int(value) else repr(value)
