"""One request inside the scheduler: its tokens, cache blocks, sampling state, and what it still has to report."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

from forebay import GenerateRequest
from forebay_engine.arrays import Floats
from forebay_engine.logprobs import PromptScores
from forebay_engine.sampler import Chooser
from forebay_engine.stop_texts import Decode, StopTexts


@dataclass(slots=True, eq=False)
class Task:
    """A request that waits or runs. `tokens` is the prompt and, behind it, all output so far. Equal only to itself."""

    request: GenerateRequest
    serial: int
    """Order of arrival."""
    limit: int
    """Output tokens in force: what was asked for, within the context and the cache."""
    stops: frozenset[int]
    stop_texts: StopTexts | None
    """Stop strings, when the engine looks for them."""
    chooser: Chooser
    tokens: array[int]
    prompt: int
    """Prompt tokens."""
    cached: int = 0
    """Tokens whose attention state is in the cache; 0 again after a retraction."""
    blocks: list[int] = field(default_factory=list)
    scores: PromptScores | None = None
    """Prompt logprobs collected so far; None when none are wanted, or when they have been sent."""
    hidden_from: int = 0
    """First position whose hidden state has not been collected yet."""
    hidden: list[Floats] = field(default_factory=list)
    """Hidden rows (positions, hidden size) of this request that wait for the next output."""
    pooled: Floats | None = None
    """Of an embedding request: the sum of the prompt's hidden rows so far (hidden size)."""

    @property
    def rid(self) -> str:
        """The request's id on the wire."""
        return self.request.rid

    @property
    def produced(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - self.prompt

    @property
    def decoding(self) -> bool:
        """Whether only the newest token is missing in the cache."""
        return self.cached == len(self.tokens) - 1 and self.produced > 0

    @property
    def rank(self) -> tuple[int, int]:
        """Order of service: higher priority first, then order of arrival."""
        return (-(self.request.priority or 0), self.serial)

    def scored_positions(self, start: int, end: int) -> range:
        """Of the positions `start` to `end`, those whose logits predict a prompt token that is still to be scored."""
        if self.scores is None:
            return range(0)
        return range(max(start, self.scores.next - 1), max(start, min(end, self.prompt - 1)))

    def hidden_positions(self, start: int, end: int) -> range:
        """Of the positions `start` to `end`, those whose hidden state is still to be collected."""
        if not (self.request.return_hidden_states or self.request.embedding):
            return range(0)
        return range(max(start, self.hidden_from), max(start, end, self.hidden_from))

    def keep_hidden(self, rows: Floats) -> None:
        """Collect hidden rows (positions, hidden size): to be reported, or for the mean of an embedding."""
        if not self.request.embedding:
            self.hidden.append(rows.copy())
            return
        total = rows.sum(axis=0, dtype=rows.dtype)
        self.pooled = total if self.pooled is None else self.pooled + total

    @property
    def scores_next(self) -> bool:
        """Whether the ids that were given are to be scored behind the prompt, although no token follows."""
        return self.limit == 0 and self.request.return_logprob and bool(self.request.token_ids_logprob)

    def end_of(self, token: int) -> dict[str, Any] | None:
        """The finish reason after `token` was appended, or None. Length is judged before stops."""
        if self.produced >= self.limit:
            return {"type": "length", "length": self.produced}
        if token in self.stops:
            return {"type": "stop", "matched": token}
        if self.stop_texts is not None and (text := self.stop_texts.match(self.tokens[self.prompt :])) is not None:
            return {"type": "stop", "matched": text}
        return None


def make_task(
    request: GenerateRequest, serial: int, *, limit: int, eos: frozenset[int], vocab: int, decode: Decode | None
) -> Task:
    """A waiting task for a request that `refusals.refuse` has let through. With `decode`, stop strings end it."""
    sampling = request.sampling
    ending = eos.union(sampling.stop_token_ids)
    return Task(
        request=request,
        serial=serial,
        limit=limit,
        stops=frozenset() if sampling.ignore_eos else ending,
        stop_texts=StopTexts(sampling.stop, sampling.stop_str_max_len, decode) if decode and sampling.stop else None,
        chooser=Chooser(sampling, request.input_ids, ending, vocab),
        tokens=array("q", request.input_ids),
        prompt=len(request.input_ids),
        scores=_wanted_scores(request),
    )


def _wanted_scores(request: GenerateRequest) -> PromptScores | None:
    start = request.logprob_start_len
    if not request.return_logprob or not 0 <= start < len(request.input_ids):
        return None
    return PromptScores(start, request.input_ids[start], request.top_logprobs_num > 0, bool(request.token_ids_logprob))


def abort_reason(message: str, status: int | None = None) -> dict[str, Any]:
    """The finish reason of a request that is given up; with `status`, its client gets an error."""
    kind = None if status is None else "InternalServerError" if status >= 500 else "BadRequestError"
    return {"type": "abort", "message": message, "status_code": status, "err_type": kind}
