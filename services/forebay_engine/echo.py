"""The engine without a model: it gives back a text, or the prompt, at a set pace. For tests and benchmarks.

Request `r` has a source: the ids of `echo_text`, or its own prompt. Output token `i` is `source[i % len(source)]`.
Every value it reports can be computed again by a reader. With `t` a token id, `p` its position in prompt and
answer together (the first output token stands at `p = prompt tokens`), and `V` the size of the vocabulary:

    logprob(t, p)        = -((t * 31 + p) % 1000) / 1000      prompt and output, chosen and given ids alike
    j-th of the top ids  = (t + j) % V, with the logprob logprob(t, p) - j / 4; j = 0 is the token itself
    hidden(t, p)[i]      = ((t + p + i) % 97) / 97            for i < HIDDEN_SIZE

    embedding(prompt)    = the mean of hidden(t, p) over the prompt

A request without output tokens has the logprobs of its given ids at `p = prompt tokens`.
The first logprob of a prompt is None. The first output's hidden states cover the prompt: one vector, position
after position. Later vectors are those of the output tokens themselves.

The state of all rows lies in numpy columns, so a step costs the same few operations for any number of rows, and
Python touches single rows only when they begin, end, or asked for prompt values.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from forebay import (
    AbortRequest,
    EmbeddingBatch,
    GenerateRequest,
    GenerationBatch,
    RequestError,
    SettingsError,
    __version__,
)
from forebay.settings import Settings
from forebay_engine.arrays import Ints
from forebay_engine.echo_families import HIDDEN_SIZE, EchoFamilies, embedding
from forebay_engine.echo_table import EchoTable
from forebay_engine.meter import Meter
from forebay_engine.refusals import unsupported_field
from forebay_engine.rows import Vectors
from forebay_engine.task import abort_reason

CONTEXT = 1 << 20
"""Tokens of prompt and answer when no setting limits them."""
BYTE_VOCAB = 256
"""Size of the vocabulary without a tokenizer, when ids are bytes."""


class EchoEngine:
    """An `Engine` that repeats. `clock` gives the seconds of a steady clock."""

    def __init__(
        self,
        *,
        vocab: int,
        context: int,
        text: Ints | None = None,
        eos: frozenset[int] = frozenset(),
        step_seconds: float = 0.0,
        tokens_per_step: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`text`: the ids to repeat, None for each request's own prompt; `context`: tokens of prompt and answer."""
        self.vocab = vocab
        self.context = context
        self.text = text
        self.eos = eos
        self.step_seconds = step_seconds
        self.tokens_per_step = tokens_per_step
        self.clock = clock
        self.meter = Meter()
        self.table = EchoTable(np.zeros(0, np.int64) if text is None else text)
        self.families = EchoFamilies(vocab)
        self._ended: list[tuple[str, int, dict[str, Any]]] = []
        """Rows that end without a token: rid, prompt tokens, finish reason."""
        self._vectors = Vectors()
        """Finished embeddings: rid, vector, prompt tokens."""
        self._due = 0.0
        self.paused = False

    def add(self, request: GenerateRequest) -> None:
        """Take a request; it answers with the next step. Raises `RequestError` for one that cannot be served."""
        prompt = len(request.input_ids)
        if field := unsupported_field(request):
            raise RequestError(f"{field} is not supported by this engine", param=field)
        if not prompt:
            raise RequestError("input_ids cannot be empty.", param="input_ids")
        if prompt > self.context:
            raise RequestError(
                f"The input ({prompt} tokens) is longer than the context length ({self.context} tokens)."
            )
        if request.embedding:
            self._vectors.add(request.rid, embedding(np.array(request.input_ids, np.int64)), prompt)
            return
        if self.patience() is None:
            self._due = self.clock() + self.step_seconds
        own = np.array(request.input_ids, np.int64) if self.text is None else None
        source = own if self.text is None else self.text
        assert source is not None
        end, reason = ending(request, source, self.eos, self.context - prompt)
        self.table.add(request, own, end, reason)

    def abort(self, abort: AbortRequest) -> None:
        """End one request or all of them; after the reason `user` a last row follows."""
        removed = self.table.remove(None if abort.abort_all else {abort.rid})
        if abort.reason == "user":
            self._ended += [(row.rid, len(row.input_ids), abort_reason(abort.message)) for row in removed]

    def patience(self) -> float | None:
        """Seconds until the next step is due; None when there is nothing to do."""
        if self._ended or self._vectors:
            return 0.0
        if self.paused:
            return None
        return max(0.0, self._due - self.clock()) if len(self.table) else None

    def step(self) -> GenerationBatch | None:
        """The next tokens of all rows, when they are due."""
        if self._ended:
            return self._last_rows()
        if self.paused or not len(self.table) or self.clock() < self._due:
            return None
        # The deadlines are absolute, so that a late step does not delay the later ones.
        self._due = max(self._due, self.clock() - self.step_seconds) + self.step_seconds
        return self._emit()

    def embeddings(self) -> EmbeddingBatch | None:
        """The vectors of the embedding requests since the last call."""
        return self._vectors.take()

    def pause(self, mode: str) -> None:
        """Emit nothing until `resume`; there is nothing to give back, so the modes are the same."""
        self.paused = True

    def resume(self) -> None:
        """Go on; the time of the pause does not count."""
        self.paused = False
        self._due = self.clock() + self.step_seconds

    def flush(self) -> tuple[bool, str]:
        """There is no cache; refused all the same while requests are pending, as in other engines."""
        if len(self.table):
            return False, f"Cache not flushed: {len(self.table)} requests are running and 0 are waiting."
        return True, "Cache flushed."

    def state(self) -> dict[str, Any]:
        """Facts about the moment."""
        return {
            "num_running_reqs": len(self.table),
            "num_waiting_reqs": 0,
            "gen_throughput": round(self.meter.speed(self.clock()), 2),
            "total_output_tokens": self.meter.output_tokens,
            "total_steps": self.meter.steps,
        }

    def _last_rows(self) -> GenerationBatch:
        rids, prompts, reasons = (list(column) for column in zip(*self._ended, strict=True))
        self._ended.clear()
        return GenerationBatch(rids, np.zeros(0, np.int64), reasons, prompts, [0] * len(rids))

    def _emit(self) -> GenerationBatch:
        table = self.table
        table.merge()
        step = table.step(self.tokens_per_step)
        lens = None if step.single else step.counts.tolist()
        batch = GenerationBatch(table.rids, step.ids, step.reasons, table.prompt_tokens, lens)
        self.families.fill(batch, table, step)
        table.advance(step)
        self.meter.step(self.clock(), 0, len(step.ids))
        return batch


def ending(request: GenerateRequest, source: Ints, eos: frozenset[int], room: int) -> tuple[int, dict[str, Any]]:
    """How many tokens a request will get, and why it will end then: known beforehand, since the output is."""
    sampling = request.sampling
    limit = room if sampling.max_new_tokens is None else min(sampling.max_new_tokens, room)
    stops = [] if sampling.ignore_eos else sorted(eos.union(sampling.stop_token_ids))
    found = np.flatnonzero(np.isin(source, stops)) if stops else np.zeros(0, np.int64)
    if len(found):
        # The first stop token at or behind the place where the minimum is reached, in the endless repetition.
        rounds, place = divmod(sampling.min_new_tokens, len(source))
        later = found[found >= place]
        at = rounds * len(source) + int(later[0] if len(later) else found[0] + len(source))
        if at + 1 < limit:
            return at + 1, {"type": "stop", "matched": int(source[at % len(source)])}
    return limit, {"type": "length", "length": limit}


def open_echo(settings: Settings) -> tuple[EchoEngine, dict[str, Any]]:
    """The engine that the settings describe, and its launch facts. Raises `SettingsError`.

    The tokenizer of `tokenizer_path` or of the model folder encodes `echo_text`; without one, ids are bytes.
    """
    path = _tokenizer_file(settings)
    text, vocab, eos = None, BYTE_VOCAB, frozenset[int]()
    if path is not None:
        text, vocab, eos = _read_tokenizer(path, settings.echo_text)
    elif settings.echo_text is not None:
        text = np.frombuffer(settings.echo_text.encode(), np.uint8).astype(np.int64)
    if text is not None and not len(text):
        raise SettingsError("echo_text has no token: give a longer text, or none for an echo of the prompt")
    context = settings.context_length or CONTEXT
    engine = EchoEngine(
        vocab=vocab,
        context=context,
        text=text,
        eos=eos,
        step_seconds=settings.echo_step_ms / 1000,
        tokens_per_step=settings.echo_tokens_per_step,
    )
    facts = {
        "model_path": settings.model_path or "echo",
        "tokenizer_path": None if path is None else settings.tokenizer_path or settings.model_path,
        "served_model_name": settings.served_model_name or "echo",
        "chat_template": settings.chat_template,
        "context_length": context,
        "vocab_size": vocab,
        "hidden_size": HIDDEN_SIZE,
        "eos_token_ids": sorted(eos),
        "version": f"forebay-{__version__}",
        "num_reserved_tokens": 0,
        "max_total_num_tokens": context,
        "max_req_input_len": context - 1,
        "model_config": {"vocab_size": vocab, "hidden_size": HIDDEN_SIZE, "max_position_embeddings": context},
        "model_type": "echo",
        "architectures": ["EchoEngine"],
        "is_generation": True,
        "embedding_method": "mean of made-up hidden states",
    }
    return engine, facts


def _tokenizer_file(settings: Settings) -> Path | None:
    """The tokenizer.json that the settings name; None when they name none."""
    if settings.tokenizer_path is not None:
        path = Path(settings.tokenizer_path)
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise SettingsError(f"there is no tokenizer at {file}: tokenizer_path is a folder with a tokenizer.json")
        return file
    file = Path(settings.model_path or "") / "tokenizer.json"
    return file if settings.model_path and file.is_file() else None


def _read_tokenizer(file: Path, text: str | None) -> tuple[Ints | None, int, frozenset[int]]:
    """The ids of `text`, the size of the vocabulary, and the end token that tokenizer_config.json names."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    ids = None if text is None else np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int64)
    end = _end_token(file.with_name("tokenizer_config.json"))
    number = None if end is None else tokenizer.token_to_id(end)
    return ids, tokenizer.get_vocab_size(), frozenset() if number is None else frozenset((number,))


def _end_token(file: Path) -> str | None:
    if not file.is_file():
        return None
    value = json.loads(file.read_text(encoding="utf-8")).get("eos_token")
    return value.get("content") if isinstance(value, dict) else value
