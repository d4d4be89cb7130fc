"""From a step of SGLang's scheduler to a `GenerationBatch`. Pure: reads attributes, imports nothing of SGLang.

SGLang fills every logprob column with empty cells as soon as one client asks, and one column has one cell a request.
So the rows that carry data are found once, in C, and only they cost anything after that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, compress
from typing import Any

from forebay import FlatFamily, GenerationBatch, HiddenFamily, RaggedFamily


def filled(column: Sequence[Any] | None) -> list[int]:
    """The rows of a column whose cell is not empty (10 ns an empty cell)."""
    return list(compress(range(len(column)), column)) if column else []


class Outputs:
    """Translates steps; remembers how much of its hidden states each request has sent, since SGLang sends all of them
    again with every row."""

    def __init__(self) -> None:
        self._sent: dict[str, int] = {}
        self._rids: list[str] = []
        """The rows of the last step with logprobs."""

    def batch(self, payload: Any, decode_latencies: Mapping[int, float] | None = None) -> GenerationBatch:
        """The batch of one `BatchTokenIDOutput`; a family is left out unless a row has data for it."""
        batch = GenerationBatch(
            payload.rids,
            payload.output_ids,
            payload.finished_reasons,
            prompt_tokens=payload.prompt_tokens,
            cached_tokens=payload.cached_tokens,
            reasoning_tokens=payload.reasoning_tokens,
        )
        if payload.output_token_logprobs_val:
            self._logprobs(batch, payload)
        if payload.output_hidden_states:
            batch.output_hidden_states = self._hidden(payload)
        if payload.weight_versions:
            batch.trailing["weight_versions"] = [spans and to_maps(spans) for spans in payload.weight_versions]
        if decode_latencies:
            rows = [decode_latencies.get(row) for row in range(len(payload.rids))]
            batch.trailing["decode_latencies"] = rows
        return batch

    def forget(self, rid: str) -> None:
        """A request is over."""
        self._sent.pop(rid, None)

    def _logprobs(self, batch: GenerationBatch, payload: Any) -> None:
        # A prompt's logprobs come with the first row of its request: the same rows again have none.
        seen, self._rids = payload.rids == self._rids, payload.rids
        for kind in ("output",) if seen else ("output", "input"):
            values, ids = (getattr(payload, f"{kind}_token_logprobs_{part}") for part in ("val", "idx"))
            rows = filled(values)
            if not rows:
                continue
            flat = FlatFamily([values[row] for row in rows], [ids[row] for row in rows], rows)
            setattr(batch, f"{kind}_token_logprobs", flat)
            # The other families have data at most where this one has, so its rows are all that is looked at.
            for family in ("top", "token_ids"):
                setattr(batch, f"{kind}_{family}_logprobs", _ragged(payload, f"{kind}_{family}_logprobs", rows))

    def _hidden(self, payload: Any) -> HiddenFamily | None:
        rows, values = [], []
        for row in filled(payload.output_hidden_states):
            states, rid = payload.output_hidden_states[row], payload.rids[row]
            sent = self._sent.get(rid, 0)
            if len(states) > sent:
                rows.append(row)
                values.append([_vector(state) for state in states[sent:]])
            if payload.finished_reasons[row] is not None:
                self._sent.pop(rid, None)
            else:
                self._sent[rid] = max(sent, len(states))
        return HiddenFamily(values, rows) if rows else None


def to_maps(spans: Sequence[Any]) -> list[dict[str, Any]]:
    """The weight versions of a finished request: from which output token to which each was in force."""
    return [{name: getattr(span, name) for name in ("version", "start", "end")} for span in spans]


def _vector(state: list[Any]) -> list[float]:
    """One position's vector. A prefill is one state with a vector for each prompt token: they go out as one, which the
    api cuts up again by the model's width."""
    return list(chain.from_iterable(state)) if state and isinstance(state[0], list) else state


def _ragged(payload: Any, name: str, candidates: list[int]) -> RaggedFamily | None:
    values, ids = getattr(payload, f"{name}_val"), getattr(payload, f"{name}_idx")
    if not values:
        return None
    rows = [row for row in candidates if values[row] and any(values[row])]
    if not rows:
        return None
    return RaggedFamily([values[row] for row in rows], [ids[row] for row in rows], rows)
