"""A scheduler without a model around SGLang's embedded server, unmodified, as its wheel brings it.

Each running request gets one token a step: the tokens of `--text` from its beginning. Steered like `_engine.py`, with
one more command, `stats`: CPU seconds of this thread in push and drain.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import types
from array import array
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import sglang_glue
from _control import Commands, StepLog
from _ids import encode

IDLE_MS = 100
"""Longest sleep of an idle engine: how late it may obey a command."""
LEADING = 0.002
"""Seconds before a step at which the exact sleep begins: `wait_request` counts in whole milliseconds."""
FAMILIES = (
    "output_token_logprobs", "input_token_logprobs", "output_top_logprobs", "input_top_logprobs",
    "output_token_ids_logprobs", "input_token_ids_logprobs",
)  # fmt: skip


class Row:
    """One running request."""

    __slots__ = ("end", "prompt", "rid", "sent", "top", "want_logprob")

    def __init__(self, request: Any) -> None:
        sampling = request.sampling_params
        self.rid = request.rid
        self.prompt = len(request.input_ids or ())
        self.end = max(1, 128 if sampling.max_new_tokens is None else sampling.max_new_tokens)
        self.sent = 0
        self.want_logprob, self.top = bool(request.return_logprob), request.top_logprobs_num or 0


class Mock:
    """The scheduler's side of the server."""

    def __init__(self, options: argparse.Namespace) -> None:
        glue = sglang_glue.load(options.sglang)
        arguments = sglang_glue.server_args(
            glue.ext, options.model, "127.0.0.1", options.port, incremental_streaming_output=options.incremental
        )
        self.server = glue.ext.Server(arguments)
        self.glue = glue.RustServer(self.server, http_port=options.port)
        self.ids = encode(options.model, options.text)
        self.cells = [array("q", [token]) for token in self.ids]
        self.step_s = 0.0
        self.rows: list[Row] = []
        self.fresh: list[str] = []
        self.log = StepLog()
        self.link_ns = 0
        empty = dict.fromkeys([f"{family}_{part}" for family in FAMILIES for part in ("val", "idx")])
        columns = ("weight_versions", "image_tokens", "audio_tokens", "video_tokens", "output_hidden_states")
        self.payload = types.SimpleNamespace(**empty, **dict.fromkeys(columns))

    def drain(self) -> None:
        begin = time.thread_time_ns()
        entries = self.glue.drain(0)
        self.link_ns += time.thread_time_ns() - begin
        for entry in entries:
            name = type(entry).__name__
            if name == "TokenizedGenerateReqInput":
                self.rows.append(Row(entry))
                self.fresh.append(public_name(entry.rid))
                self.log.took(self.fresh[-1], time.monotonic_ns())
            elif name == "AbortReq":
                self.rows = [row for row in self.rows if not (entry.abort_all or row.rid == entry.rid)]
            elif getattr(entry, "rid", None) is not None:
                self.glue.push_control_output(entry, {"success": True, "message": "ok"})

    def step(self) -> None:
        """One token for each row."""
        rows, payload = self.rows, self.payload
        size = len(self.cells)
        payload.rids = [row.rid for row in rows]
        payload.output_ids = [self.cells[row.sent % size] for row in rows]
        ended = [row.sent + 1 >= row.end for row in rows]
        payload.finished_reasons = [
            {"type": "length", "length": row.end} if end else None for row, end in zip(rows, ended, strict=True)
        ]
        payload.prompt_tokens = [row.prompt for row in rows]
        payload.cached_tokens = payload.reasoning_tokens = [0] * len(rows)
        self.fill_logprobs(rows)
        for row in rows:
            row.sent += 1
        for rid in self.fresh:
            if rid in self.log.requests:
                self.log.requests[rid][1] = len(self.log.steps)
        self.fresh.clear()
        self.log.steps.append(time.monotonic_ns())
        begin = time.thread_time_ns()
        self.glue.push_generation(payload, {})
        self.link_ns += time.thread_time_ns() - begin
        if any(ended):
            self.rows = [row for row, end in zip(rows, ended, strict=True) if not end]

    def fill_logprobs(self, rows: list[Row]) -> None:
        """The families as SGLang's scheduler sends them: a cell for every row as soon as one has asked."""
        payload = self.payload
        wanted = any(row.want_logprob for row in rows)
        for family in FAMILIES:
            for part in ("val", "idx"):
                setattr(payload, f"{family}_{part}", [[] for _ in rows] if wanted else None)
        if not wanted:
            return
        for at, (row, cell) in enumerate(zip(rows, payload.output_ids, strict=True)):
            if row.want_logprob:
                token = cell[0]
                payload.output_token_logprobs_val[at], payload.output_token_logprobs_idx[at] = [-0.25], [token]
                if row.top:
                    payload.output_top_logprobs_val[at] = [[-0.25 - 0.5 * j for j in range(row.top)]]
                    payload.output_top_logprobs_idx[at] = [[token + j for j in range(row.top)]]

    def obey(self, words: list[str]) -> None:
        if words[0] == "step":
            self.step_s = float(words[1]) / 1000
        elif words[0] == "log":
            self.log.write(words[1])
        Commands.answer(ok=True, link_cpu_s=self.link_ns / 1e9)

    def run(self, commands: Commands) -> None:
        """Serve until told to quit. The pace is that of the echo engine: absolute deadlines, the first a step away."""
        due = time.monotonic()
        while True:
            words = commands.next()
            if words is not None:
                if words[0] == "quit":
                    return
                self.obey(words)
            if not self.rows:
                self.glue.wait_request(IDLE_MS)
                self.drain()
                due = time.monotonic() + self.step_s
                continue
            self.wait(due)
            self.drain()
            due = max(due, time.monotonic() - self.step_s) + self.step_s
            self.step()

    def wait(self, due: float) -> None:
        while (left := due - time.monotonic()) > 0:
            if left > LEADING:
                self.glue.wait_request(int(left * 1000) - 1)
                self.drain()
            else:
                time.sleep(left)


def public_name(rid: str) -> str:
    """What the client sees of a request's name: the server appends "#..." to it, and the choice of a completion."""
    name = rid.partition("#")[0]
    return name.removesuffix("-0") if name.startswith("cmpl-") else name


def main() -> None:
    """Serve until the end of stdin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sglang", required=True, help="folder with the unpacked wheel")
    parser.add_argument("--model", required=True, help="folder with tokenizer.json and config.json")
    parser.add_argument("--text", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--incremental", action="store_true")
    mock = Mock(parser.parse_args())
    commands = Commands()
    Commands.answer(ready=True, pid=os.getpid())
    mock.run(commands)
    mock.server.shutdown()


if __name__ == "__main__":
    main()
