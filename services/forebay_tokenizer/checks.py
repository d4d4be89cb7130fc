"""A bad request ends here: lengths and ranges that need the tokenizer or the model's facts to be judged.

Pure. Every check returns quietly or raises `RequestError` with the status, the text and the field for the client.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forebay.errors import RequestError
from forebay.wire.messages import Ids, SamplingParams
from forebay_tokenizer.bounds import Bound

SLICE = 1 << 14
"""Ids looked at in one go: the interpreter lock is free again every 0.4 ms on a prompt of a million."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What prompts are held to. `context_length` None: unknown as yet, and nothing is refused for its length."""

    vocab_size: int
    """Ids that the model has: 0 up to this, exclusive."""
    context_length: int | None = None
    reserved: int = 0
    """Positions of the context that the engine keeps for itself."""
    allow_auto_truncate: bool = False
    bound: Bound | None = None
    """What tells from a text's bytes how many tokens it has at the least; None: nothing does."""


def text_bytes(text: str, param: str) -> bytes:
    """A text in UTF-8; refuses half a surrogate pair, which no tokenizer and no frame can carry."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text has an unpaired surrogate at position {error.start}, which is not a character", param=param
        ) from error


def text_can_fit(text: bytes, limits: Limits, param: str) -> None:
    """Refuse a text (in UTF-8) that no encoding can bring below the context length."""
    if limits.context_length is None or limits.bound is None or limits.allow_auto_truncate:
        return
    if len(text) + limits.reserved < limits.context_length:  # no token has less than a byte
        return
    least = limits.bound.least_tokens(text, limits.context_length - limits.reserved) + limits.reserved
    if least >= limits.context_length:
        raise RequestError(
            f"The input (at least {least} tokens) is longer than the model's context length "
            f"({limits.context_length} tokens).",
            param=param,
        )


def ids_in_range(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Refuse ids that the model does not have; the message names the first of them."""
    for start in range(0, len(ids), SLICE):
        part = ids[start : start + SLICE]
        if min(part) >= 0 and max(part) < vocab_size:
            continue
        at, bad = next((at, one) for at, one in enumerate(part, start) if not 0 <= one < vocab_size)
        raise RequestError(f"{param} must be in [0, {vocab_size - 1}], got {bad} at position {at}.", param=param)


def not_empty(ids: Ids) -> None:
    """The engine never gets a prompt without tokens."""
    if not ids:
        raise RequestError("input_ids cannot be empty.", param="input_ids")


def fit(ids: Ids, sampling: SamplingParams, limits: Limits, *, given: bool, keep: int | None, param: str) -> Ids:
    """The prompt as it goes to the engine, held to the context length.

    `given`: a limit of new tokens was set, so it must fit too. `keep` is the request's `truncate_prompt_tokens`. With
    `allow_auto_truncate` the prompt is cut, and `sampling` changed, instead of refusing.
    """
    wish = sampling.max_new_tokens if given else None
    ids = _keep_last(ids, keep, wish, limits)
    context = limits.context_length
    if context is None:
        return ids
    if len(ids) + limits.reserved >= context:
        if not limits.allow_auto_truncate:
            raise RequestError(
                f"The input ({len(ids) + limits.reserved} tokens) is longer than the model's context length "
                f"({context} tokens).",
                param=param,
            )
        ids = ids[:context]
    taken = len(ids) + limits.reserved
    if wish is not None and wish + taken > context:
        if not limits.allow_auto_truncate:
            raise RequestError(
                f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested "
                f"a total of {wish + taken} tokens: {taken} tokens from the input and {wish} tokens for the "
                "completion. Please shorten the input or the completion.",
                param="max_new_tokens",
            )
        sampling.max_new_tokens = max(0, context - taken)
        sampling.min_new_tokens = min(sampling.min_new_tokens, sampling.max_new_tokens)
    return ids


def _keep_last(ids: Ids, keep: int | None, wish: int | None, limits: Limits) -> Ids:
    """Apply `truncate_prompt_tokens`: the last `keep` ids; -1 as many as the context has room for beside the answer."""
    if keep is None:
        return ids
    if keep == -1:
        if limits.context_length is None:
            return ids
        keep = max(1, limits.context_length - limits.reserved - max(1, wish or 0))
    if keep < 1:
        raise RequestError(
            f"truncate_prompt_tokens must be -1 or at least 1, got {keep}.", param="truncate_prompt_tokens"
        )
    return ids[-keep:]


def sampling_ids(sampling: SamplingParams, token_ids_logprob: list[int] | None, vocab_size: int) -> None:
    """Refuse token ids outside the vocabulary in the fields that name tokens."""
    if token_ids_logprob:
        ids_in_range(token_ids_logprob, vocab_size, "token_ids_logprob")
    for key in sampling.logit_bias or ():
        if not 0 <= key < vocab_size:
            raise RequestError(f"logit_bias must has keys in [0, {vocab_size - 1}], got {key}.", param="logit_bias")
    if sampling.stop_token_ids:
        ids_in_range(sampling.stop_token_ids, vocab_size, "stop_token_ids")


def id_array(values: Iterable[object], vocab_size: int, param: str) -> Ids:
    """Ids from JSON values; refuses what is not an integer, too large for 64 bits, or not in the vocabulary."""
    out = array("q")
    for at, value in enumerate(values):
        if not isinstance(value, int) or isinstance(value, bool):
            raise RequestError(f"{param} must be integers, got {str(value)[:40]!r} at position {at}.", param=param)
        if not 0 <= value < vocab_size:
            raise RequestError(f"{param} must be in [0, {vocab_size - 1}], got {value} at position {at}.", param=param)
        out.append(value)
    return out
