"""Logprobs and hidden states of one request: from the rows of a frame to the `Extra` of a delta or an end.

Only rows that carry data cost anything. Output families are pieces that are put together in order; an input family
arrives once, and a later one (after the engine has retracted the request) takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from forebay.wire.messages import Extra, Pairs

if TYPE_CHECKING:
    from forebay_detokenizer.sessions import Session

FIELDS = (
    "output_logprobs",
    "input_logprobs",
    "output_top",
    "input_top",
    "output_token_ids",
    "input_token_ids",
    "hidden_states",
)
"""The field of `Extra` for each family of an egress frame, in the frame's order."""


class Rows(Protocol):
    """One family of a frame: the rows that carry data, and what they carry."""

    def items(self) -> Iterable[tuple[int, Any]]: ...


def extras_of(families: Sequence[Rows | None], sessions: Sequence[Session]) -> dict[int, Extra]:
    """What the rows of a frame carry, by row, for the requests that asked for it. Raises `PeerError`."""
    found: dict[int, Extra] = {}
    for field, family in zip(FIELDS, families, strict=True):
        if family is None:
            continue
        for row, value in family.items():
            session = sessions[row]
            if session.want_hidden if field == "hidden_states" else session.want_logprobs:
                extra = found.get(row)
                if extra is None:
                    extra = found[row] = Extra()
                setattr(extra, field, value)
    return found


def wanted(extra: Extra, session: Session) -> Extra | None:
    """What a request asked for out of everything that its row carries; None when that is nothing."""
    if not session.want_hidden:
        extra.hidden_states = None
    if not session.want_logprobs:
        extra = Extra(hidden_states=extra.hidden_states)
    return None if extra == Extra() else extra


def merged(first: Extra | None, then: Extra) -> Extra:
    """Two pieces of one request in order. The result takes over the lists of both."""
    if first is None:
        return then
    if then.output_logprobs is not None:
        if first.output_logprobs is None:
            first.output_logprobs = then.output_logprobs
        else:
            first.output_logprobs.values.extend(then.output_logprobs.values)
            first.output_logprobs.ids.extend(then.output_logprobs.ids)
    for field in ("output_top", "output_token_ids", "hidden_states"):
        new, old = getattr(then, field), getattr(first, field)
        if old is None:
            setattr(first, field, new)
        elif new is not None:
            old.extend(new)
    for field in ("input_logprobs", "input_top", "input_token_ids"):
        if getattr(then, field) is not None:
            setattr(first, field, getattr(then, field))
    if then.token_bytes is not None:
        first.token_bytes = {**(first.token_bytes or {}), **then.token_bytes}
    return first


def without_last(extra: Extra, dropped: int) -> None:
    """Take the last `dropped` output positions away: their tokens came after the one that ended the request."""
    if extra.output_logprobs is not None:
        del extra.output_logprobs.values[-dropped:]
        del extra.output_logprobs.ids[-dropped:]
    for cells in (extra.output_top, extra.output_token_ids, extra.hidden_states):
        if cells is not None:
            del cells[-dropped:]


def name_tokens(extra: Extra, token_bytes: Callable[[int], bytes]) -> None:
    """Add the bytes of every token that the families name, each token by itself."""
    ids = set(_ids(extra))
    if ids:
        extra.token_bytes = {i: token_bytes(i) for i in ids}


def _ids(extra: Extra) -> Iterator[int]:
    for pairs in (extra.output_logprobs, extra.input_logprobs):
        if pairs is not None:
            yield from pairs.ids
    for cells in (extra.output_top, extra.input_top, extra.output_token_ids, extra.input_token_ids):
        for cell in cells or ():
            if isinstance(cell, Pairs):
                yield from cell.ids
