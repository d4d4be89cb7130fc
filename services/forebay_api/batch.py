"""One prompt or many: how prompts, ids and list-valued fields are spread over the items of a batch. Pure."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

from forebay.errors import RequestError
from forebay.wire.messages import Ids
from forebay_api.plan import AdmissionContext
from forebay_api.typeerrors import clipped

MAX_RID = 128
"""Characters of a client's request id: it stands in logs and in every event."""


def per_item(value: Any, count: int, name: str) -> list[Any]:
    """One value for each of `count` prompts: a list as it is, anything else for all. Raises `RequestError` (400)."""
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise RequestError(f"{name} has {len(value)} entries, but there are {count} prompts", param=name)
    return value


def check_items(count: int, n: int, ctx: AdmissionContext) -> None:
    """Refuse more samples in all than one call may have, before anything is made for them."""
    limit = ctx.settings.max_batch_items
    if count * n > limit:
        text = f"{count} prompts with n={n} make {count * n} items, over the limit of {limit} in one request"
        raise RequestError(text, param="n" if n > 1 else None)


def public_rids(rid: str | list[str] | None, count: int, *, batch: bool) -> list[str | None]:
    """What the client calls each prompt. One id for a batch becomes `<id>_0`, `<id>_1` ... Raises `RequestError`."""
    if rid is None:
        return [None] * count
    for one in rid if isinstance(rid, list) else [rid]:
        if not 1 <= len(one) <= MAX_RID or not one.isascii() or not one.isprintable():
            raise RequestError(f"rid must be 1 to {MAX_RID} printable ASCII characters", param="rid")
    if isinstance(rid, str):
        return [f"{rid}_{at}" for at in range(count)] if batch else [rid]
    rids = per_item(rid, count, "rid")
    if len(set(rids)) != len(rids):
        twice = [one for one, times in Counter(rids).items() if times > 1][:8]
        raise RequestError(f"Duplicate request IDs detected within the request: {twice}", param="rid")
    return list(rids)


def id_prompts(values: list[Any], name: str, *, may_be_empty: bool = False) -> tuple[list[Ids], bool]:
    """Token id prompts and whether they came as a batch: a flat list is one prompt, a list of lists is many.

    Raises `RequestError` (400) for empty and mixed lists. Whether the ids are in the vocabulary is checked by the
    tokenizer process.
    """
    if not values:
        if may_be_empty:
            return [array("q")], False
        raise RequestError(f"{name} cannot be empty.", param=name)
    batch = isinstance(values[0], list)
    lists = values if batch else [values]
    try:
        prompts = [array("q", one) for one in lists]
    except TypeError as error:
        text = f"{name} must be token ids, or one list of token ids for each prompt, not a mixture"
        raise RequestError(text, param=name) from error
    if not all(prompts) and not may_be_empty:
        raise RequestError(f"{name} cannot be empty for any prompt in the batch", param=name)
    return prompts, batch


def token_ids_of(values: list[Any] | None, count: int, n: int, ctx: AdmissionContext, *, batch: bool) -> list[Any]:
    """`token_ids_logprob` for each prompt: a flat list is for all, nested lists are one each, `[]` is null."""
    name = "token_ids_logprob"
    if not values:
        return [None] * count
    nested = not all(isinstance(one, int) for one in values)
    if nested and any(isinstance(one, int) for one in values):
        raise RequestError(f"{name} must be token ids, or one list of token ids for each prompt", param=name)
    if nested and not batch:
        raise RequestError(f"{name} must be a flat list of token ids for a single prompt", param=name)
    if nested and n > 1:
        raise list_with_samples(name)
    lists = per_item(values, count, name) if nested else [values] * count
    limit = ctx.settings.max_top_logprobs
    longest = max((len(one) for one in lists if one), default=0)
    if longest > limit:
        raise RequestError(f"{name} has {longest} ids, over the limit of {limit}", param=name)
    return [one or None for one in lists]


def list_with_samples(name: str) -> RequestError:
    """The 400 for a field that cannot be a list when each prompt has several samples."""
    return RequestError(f"{name} cannot be a list when n > 1", param=name)


def check_count(value: int, name: str, ctx: AdmissionContext) -> int:
    """A number of alternatives per position, within the operator's limit."""
    limit = ctx.settings.max_top_logprobs
    if not 0 <= value <= limit:
        raise RequestError(f"{name} must be in [0, {limit}], got {clipped(str(value))}.", param=name)
    return value
