"""From work items to admitted requests: render, encode, check, and one head a sample. No threads, no sockets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from forebay.errors import RequestError
from forebay.wire.messages import Admitted, Ids, OpenItem, RequestHead, SamplingParams, WorkItem
from forebay_tokenizer import checks
from forebay_tokenizer.caches import Encoded, Segments
from forebay_tokenizer.templates import ChatTemplates

T = TypeVar("T")
TAIL = 6
"""Last ids of the prompt that the detokenizer sees: enough context to decide about a first space."""


class Admission(NamedTuple):
    """A tokenised work item: one open and one head for each of its samples, and the ids that they share."""

    opens: list[OpenItem]
    heads: list[RequestHead]
    ids: Ids

    def admitted(self, decode: Callable[[Ids], str]) -> list[Admitted]:
        """What the api gets if the client asked for its prompt as it went to the engine; `decode` makes text of it."""
        first = self.opens[0]
        if not (first.want_prompt_ids or first.want_prompt_text):
            return []
        text = decode(self.ids) if first.want_prompt_text else None
        return [Admitted(rid=first.rid, prompt_ids=self.ids.tobytes(), prompt_text=text)]


class Piece(NamedTuple):
    """A text that is to be encoded: a chat (from the segment cache), or plain, with special tokens or without."""

    text: str
    chat: bool = False
    add_special_tokens: bool = False


def prompt_size(item: WorkItem) -> int:
    """What a work item costs to encode, roughly, in characters: decides about its lane. Ids cost next to nothing."""
    size = sum(map(len, item.head.sampling.stop))
    if item.chat is not None:
        return size + sum(
            len(part or b"") for part in (item.chat.messages, item.chat.tools, item.chat.chat_template_kwargs)
        )
    return size + len(item.text or "")


class Admitter:
    """Turns work items into admissions. `limits` may be replaced when the engine has said more about itself."""

    def __init__(
        self, segments: Segments, templates: ChatTemplates, limits: checks.Limits, log: logging.Logger
    ) -> None:
        self.segments = segments
        self.encoder = segments.encoder
        self.templates = templates
        self.limits = limits
        self._log = log

    def admit_many(self, work: Sequence[tuple[WorkItem, Ids]]) -> list[Admission | RequestError]:
        """Each item's admission, or why it is refused. All texts of a kind are encoded in one call."""
        prepared = [self.guard(self.pieces, item) for item, _ in work]
        encoded = iter(self.encode([piece for pieces in prepared if isinstance(pieces, list) for piece in pieces]))
        out: list[Admission | RequestError] = []
        for (item, ids), pieces in zip(work, prepared, strict=True):
            if isinstance(pieces, RequestError):
                out.append(pieces)
                continue
            parts = [next(encoded) for _ in pieces]
            out.append(self.guard(self._admit, item, parts, ids))
        return out

    def guard(self, step: Callable[..., T], *args: object) -> T | RequestError:
        """A step's result or the error that ends this request: its trouble must not reach the others of the batch."""
        try:
            return step(*args)
        except RequestError as error:
            return error
        except Exception:  # a fault of ours: this client is told nothing of it, the operator everything
            self._log.exception("a request failed in the tokenizer")
            return RequestError("Internal server error", 500)

    def pieces(self, item: WorkItem) -> list[Piece]:
        """The texts that make the prompt of an item, in order, checked; none when it came as ids."""
        if item.chat is not None:
            pieces = self.chat_pieces(item)
        elif item.text is not None:
            pieces = [Piece(item.text, add_special_tokens=item.add_special_tokens)]
        else:
            return []
        param = _param(item)
        for piece in pieces:
            text = checks.text_bytes(piece.text, param)
            if item.truncate_prompt_tokens is None:
                checks.text_can_fit(text, self.limits, param)
        return pieces

    def chat_pieces(self, item: WorkItem) -> list[Piece]:
        """The rendered chat, and the begun answer apart from it where the two can be joined as ids."""
        assert item.chat is not None
        text, continuation = self.templates.render(item.chat)
        if continuation is None:
            return [Piece(text, chat=True)]
        if not self.encoder.joins:
            return [Piece(text + continuation, chat=True)]
        return [Piece(text, chat=True), Piece(continuation)]

    def encode(self, pieces: Sequence[Piece]) -> list[Encoded]:
        """The ids of each piece, or why it cannot be encoded; one call for each kind."""
        out: dict[int, Encoded] = {}
        for chat, special in ((True, False), (False, True), (False, False)):
            at = [i for i, piece in enumerate(pieces) if (piece.chat, piece.add_special_tokens) == (chat, special)]
            if not at:
                continue
            texts = [pieces[i].text for i in at]
            many = self.segments.encode_many(texts) if chat else self._plain(texts, special)
            out.update(zip(at, many, strict=True))
        return [out[i] for i in range(len(pieces))]

    def _plain(self, texts: list[str], special: bool) -> list[Encoded]:
        return self.encoder.encode_many(texts, add_special_tokens=special)

    def _admit(self, item: WorkItem, parts: list[Encoded], ids: Ids) -> Admission:
        if parts:
            ids = joined(parts)
            if self.encoder.vocab_size > self.limits.vocab_size:
                checks.ids_in_range(ids, self.limits.vocab_size, _param(item))
        checks.not_empty(ids)
        if not parts:
            checks.ids_in_range(ids, self.limits.vocab_size, "input_ids")
        sampling = item.head.sampling
        given = item.max_new_tokens_given
        ids = checks.fit(ids, sampling, self.limits, given=given, keep=item.truncate_prompt_tokens, param=_param(item))
        if item.head.return_logprob and item.head.logprob_start_len > len(ids):
            text = f"logprob_start_len ({item.head.logprob_start_len}) is larger than the number of prompt tokens"
            raise RequestError(f"{text} ({len(ids)})", param="logprob_start_len")
        checks.sampling_ids(sampling, item.head.token_ids_logprob, self.limits.vocab_size)
        sampling.stop_str_max_len = max(map(self.encoder.stop_length, sampling.stop), default=0)
        return _fan_out(item, ids)


def joined(parts: Sequence[Encoded]) -> Ids:
    """The ids of all parts, one after the other; raises the error of a part that has none."""
    out: Ids | None = None
    for part in parts:
        if isinstance(part, RequestError):
            raise part
        out = part if out is None else out + part
    assert out is not None
    return out


def _param(item: WorkItem) -> str:
    """The field of the request that holds the prompt."""
    if item.chat is not None:
        return "messages"
    return "text" if item.text is not None else "input_ids"


def _fan_out(item: WorkItem, ids: Ids) -> Admission:
    """One open and one head for each sample. A seed counts up, so that samples differ and each can be repeated."""
    base = item.head.sampling
    tail = ids[-TAIL:].tolist()
    opens, heads = [], []
    for at, rid in enumerate(item.rids):
        sampling = replace(base, n=1, sampling_seed=_seed(base, at))
        heads.append(replace(item.head, rid=rid, sampling=sampling))
        opens.append(
            replace(
                item.open,
                rid=rid,
                prompt_tokens=len(ids),
                prompt_tail=tail,
                min_new_tokens=base.min_new_tokens,
            )
        )
    return Admission(opens, heads, ids)


def _seed(sampling: SamplingParams, sample: int) -> int | None:
    """The seed of one sample; past the largest signed 64-bit number it goes on at the smallest."""
    if sampling.sampling_seed is None:
        return None
    return (sampling.sampling_seed + sample + (1 << 63)) % (1 << 64) - (1 << 63)
