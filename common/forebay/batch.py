"""What an engine hands to `Front.push_generation`: one row a request, plus families for the rows that have them.

Every family is sparse: `rows` names the rows of the batch that carry data (ascending; None: all of them), and
the other fields have one entry for each of these rows. So a batch of 4,096 of which one client wants logprobs
costs one entry. Values may be nested lists, or contiguous arrays (numpy, torch, anything with the buffer
protocol): arrays travel as raw bytes, 25 to 100 times cheaper on the scheduler's thread than lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class FlatFamily:
    """A value and a token id for each position of a row (chosen token logprobs).

    As lists: `values[k][p]` (float, or None for a position without a value) and `ids[k][p]` belong to position `p`
    of row `rows[k]`. As arrays: `values` and `ids` are 1-D over all positions of all rows, `lens` the number of
    positions of each row (None: one each); NaN stands for None.
    """

    values: Any
    ids: Any
    rows: Sequence[int] | None = None
    lens: Sequence[int] | None = None


@dataclass(slots=True)
class RaggedFamily:
    """Several values and token ids for each position of a row (top-k logprobs, logprobs of given ids).

    As lists: `values[k][p][j]`, and None in place of `values[k][p]` for a position without data. As arrays:
    `values` and `ids` are `[positions, width]`, or 1-D with `pos_lens` giving the width of each position (0: no
    data); `lens` is the number of positions of each row (None: one each).
    """

    values: Any
    ids: Any
    rows: Sequence[int] | None = None
    lens: Sequence[int] | None = None
    pos_lens: Sequence[int] | None = None


@dataclass(slots=True)
class HiddenFamily:
    """Hidden states: one or more float vectors a row, one an output position.

    As lists: `values[k]` is a list of vectors; it may also be a list of `[positions, width]` arrays. As one array:
    `[positions, width]` over all rows with `lens` vectors for each row (None: one each).
    """

    values: Any
    rows: Sequence[int] | None = None
    lens: Sequence[int] | None = None


@dataclass(slots=True)
class GenerationBatch:
    """One scheduler step. All columns that are not None have one entry a row.

    `output_ids`: the new token ids of each row: a list of `array("q")` / `array("i")` or of lists of ints, or one
    contiguous int32 / int64 array over all rows (then `tok_lens`, None: one id each). `finish_reasons`: None for
    "nobody ends in this step", else None or a finish reason (a dict with `type`) a row. Output families hold this
    step's positions only; input (prompt) families are sent once, with the first output of their row.
    `trailing`: optional columns by name (`weight_versions`, `decode_latencies`, ...).
    """

    rids: list[str]
    output_ids: Any
    finish_reasons: list[dict[str, Any] | None] | None = None
    prompt_tokens: list[int] | None = None
    tok_lens: list[int] | None = None
    cached_tokens: list[int] | None = None
    reasoning_tokens: list[int] | None = None
    output_token_logprobs: FlatFamily | None = None
    input_token_logprobs: FlatFamily | None = None
    output_top_logprobs: RaggedFamily | None = None
    input_top_logprobs: RaggedFamily | None = None
    output_token_ids_logprobs: RaggedFamily | None = None
    input_token_ids_logprobs: RaggedFamily | None = None
    output_hidden_states: HiddenFamily | None = None
    trailing: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(slots=True)
class EmbeddingBatch:
    """Finished embedding requests, for `Front.push_embeddings`: each request ends with its vector.

    `embeddings`: a list with one list or 1-D array of floats a request (widths may differ), or one contiguous float
    array `[rows, width]`. They travel as float32. A value that is no finite number is null in the answer.
    """

    rids: list[str]
    embeddings: Any
    prompt_tokens: list[int]
    cached_tokens: list[int] | None = None
