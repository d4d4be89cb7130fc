"""The JSON shapes of logprobs and hidden states in each API family, from the families of the wire.

Values that are no finite number cannot stand in JSON: null in the native and completions shapes; in the chat shape,
whose clients demand a number, -9999.0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from forebay.wire.messages import Extra, Pairs

NO_LOGPROB = -9999.0
"""The chat shape's stand-in for "no value" (OpenAI clients require a number)."""


def finite(value: float | None) -> float | None:
    """The value, or None where JSON has no number for it."""
    return value if value is not None and math.isfinite(value) else None


def merge(first: Extra | None, second: Extra | None) -> Extra | None:
    """Two successive deltas of one request as one, which takes over the lists of both: the cost is that of the second.

    Prompt families come once; a later one replaces the earlier.
    """
    if first is None or second is None:
        return second if first is None else first
    if first.output_logprobs is None:
        first.output_logprobs = second.output_logprobs
    elif second.output_logprobs is not None:
        first.output_logprobs.values += second.output_logprobs.values
        first.output_logprobs.ids += second.output_logprobs.ids
    first.input_logprobs = second.input_logprobs or first.input_logprobs
    first.input_top = second.input_top or first.input_top
    first.input_token_ids = second.input_token_ids or first.input_token_ids
    first.output_top = _join(first.output_top, second.output_top)
    first.output_token_ids = _join(first.output_token_ids, second.output_token_ids)
    first.hidden_states = _join(first.hidden_states, second.hidden_states)
    if first.token_bytes is None:
        first.token_bytes = second.token_bytes
    elif second.token_bytes is not None:
        first.token_bytes.update(second.token_bytes)
    return first


def _join(first: list[Any] | None, second: list[Any] | None) -> list[Any] | None:
    if first is None or second is None:
        return second if first is None else first
    first += second
    return first


def token_text(extra: Extra, token: int) -> str:
    """How a single token is shown: its own bytes as text; bytes that are no whole characters as latin-1."""
    raw = (extra.token_bytes or {}).get(token, b"")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


# ---------------------------------------------------------------- native: [logprob, id, text]
Triple = tuple[float | None, int, str | None]


def native(extra: Extra | None, *, top: bool, token_ids: bool, text: bool, prompt: bool) -> dict[str, Any]:
    """The logprob entries of `meta_info`; `prompt` says whether the prompt's families are due in this frame."""
    extra = extra or Extra()
    outputs = _triples(extra, extra.output_logprobs, text)
    out: dict[str, Any] = {"output_token_logprobs": outputs, "output_token_logprobs_length": len(outputs)}
    if prompt:
        out["input_token_logprobs"] = _triples(extra, extra.input_logprobs, text)
    if top:
        out["output_top_logprobs"] = _rows(extra, extra.output_top, text)
        if prompt:
            out["input_top_logprobs"] = _rows(extra, extra.input_top, text)
    if token_ids:
        out["output_token_ids_logprobs"] = _rows(extra, extra.output_token_ids, text)
        if prompt:
            out["input_token_ids_logprobs"] = _rows(extra, extra.input_token_ids, text)
    return out


def _triples(extra: Extra, pairs: Pairs | None, text: bool) -> list[Triple]:
    if pairs is None:
        return []
    return [
        (finite(value), token, token_text(extra, token) if text else None)
        for value, token in zip(pairs.values, pairs.ids, strict=True)
    ]


def _rows(extra: Extra, rows: Sequence[Pairs | None] | None, text: bool) -> list[list[Triple] | None]:
    return [None if row is None else _triples(extra, row, text) for row in rows or ()]


# ---------------------------------------------------------------- completions: four parallel lists
def completions(extra: Extra | None, top: int, offset: int, prompt: bool) -> tuple[dict[str, Any], int]:
    """The completions logprobs object of one delta, and the text offset behind it.

    `prompt` puts the prompt's tokens in front (echo). The chosen token is added to the alternatives if it is not
    among them.
    """
    extra = extra or Extra()
    tokens: list[str] = []
    values: list[float | None] = []
    tops: list[dict[str, float | None] | None] = []
    for pairs, rows in ((extra.input_logprobs, extra.input_top), (extra.output_logprobs, extra.output_top)):
        if pairs is None or (pairs is extra.input_logprobs and not prompt):
            continue
        for position, (value, token) in enumerate(zip(pairs.values, pairs.ids, strict=True)):
            name = token_text(extra, token)
            tokens.append(name)
            values.append(finite(value))
            row = rows[position] if rows is not None and position < len(rows) else None
            tops.append(_alternatives(extra, row, name, value) if top and value is not None else None)
    offsets = []
    for name in tokens:
        offsets.append(offset)
        offset += len(name)
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}, offset


def _alternatives(extra: Extra, row: Pairs | None, name: str, value: float | None) -> dict[str, float | None]:
    out: dict[str, float | None] = {}
    for logprob, token in zip(row.values, row.ids, strict=True) if row is not None else ():
        text, found = token_text(extra, token), finite(logprob)
        known = out.get(text)
        if text not in out or (found is not None and (known is None or found > known)):
            out[text] = found  # of two tokens with one text the likelier stays
    out.setdefault(name, finite(value))
    return out


# ---------------------------------------------------------------- chat: one object a token
def chat(extra: Extra | None, top: int) -> dict[str, Any]:
    """The chat logprobs object of one delta."""
    extra = extra or Extra()
    pairs = extra.output_logprobs
    content = []
    for position, (value, token) in enumerate(zip(pairs.values, pairs.ids, strict=True) if pairs is not None else ()):
        rows = extra.output_top
        row = rows[position] if top and rows is not None and position < len(rows) else None
        alternatives = zip(row.values, row.ids, strict=True) if row is not None else ()
        entry = _chat_token(extra, token, value)
        entry["top_logprobs"] = [_chat_token(extra, t, v) for v, t in list(alternatives)[:top]]
        content.append(entry)
    return {"content": content, "refusal": None}


def _chat_token(extra: Extra, token: int, value: float | None) -> dict[str, Any]:
    raw = (extra.token_bytes or {}).get(token, b"")
    logprob = finite(value)
    return {
        "token": token_text(extra, token),
        "logprob": NO_LOGPROB if logprob is None else logprob,
        "bytes": list(raw),
    }


def nested(rows: list[list[float]] | None, width: int | None) -> list[Any]:
    """The hidden-state rows of a request; a row that holds several vectors is nested again when the width is known."""
    return [_nested(row, width) for row in rows or []]


def _nested(row: list[float], width: int | None) -> Any:
    if width and len(row) > width and len(row) % width == 0:
        return [row[at : at + width] for at in range(0, len(row), width)]
    return row
