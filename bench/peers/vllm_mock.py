"""A stand-in for vLLM's EngineCore process (wire protocol of vLLM 0.33), joined to `vllm-rs` as a headless engine.

It sends HELLO, takes the addresses, sends what an engine says when it is ready, and then one message a step with one
new token for each running request: the tokens of `--text` from its beginning. Steered like `_engine.py`.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _control import Commands, StepLog
from _ids import encode

ADD, ABORT, UTILITY = 0, 1, 3
"""First bytes of the front's messages."""
FINISH_LENGTH = 1
JOIN_MS = 120_000
IDLE_MS = 100
"""Longest sleep of an idle engine: how late it may obey a command."""
LEADING = 0.002
READY = {
    "max_model_len": 40960, "num_gpu_blocks": 100000, "block_size": 16, "dp_stats_address": None, "dtype": "bfloat16",
    "vllm_version": "0.33.0", "world_size": 1, "data_parallel_size": 1, "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1, "decode_context_parallel_size": 1, "data_parallel_rank": 0, "max_num_seqs": 4096,
    "max_num_batched_tokens": 8192, "instance_id": "mock", "supports_lora": False, "max_loras": 0,
    "mamba_block_size": None, "kv_cache_size_tokens": 1600000, "kv_cache_max_concurrency": 40.0,
    "kv_events_config": None, "weight_transfer_backend": None, "enable_sleep_mode": False,
    "supports_draft_weight_updates": False, "effective_attention_block_size": 16, "coord_store_port": 0,
    "coordinator_input_address": None, "coordinator_output_address": None,
}  # fmt: skip
PREFIX_STATS = dict.fromkeys(
    ("requests", "queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits"), 0
)
UTILITY_RESULTS = {
    "get_supported_tasks": ["generate"],
    "is_sleeping": False,
    "is_scheduler_paused": False,
    "reset_prefix_cache": True,
}

encode_frame = msgspec.msgpack.Encoder().encode
decode_frame = msgspec.msgpack.Decoder().decode


def scheduler_stats(running: int) -> dict[str, Any]:
    """What an engine reports with each step."""
    return {
        "num_running_reqs": running, "num_waiting_reqs": 0, "num_skipped_waiting_reqs": 0,
        "num_kv_fetch_reqs_by_stage": {}, "step_counter": 0, "current_wave": 0, "kv_cache_usage": 0.1,
        "iteration_details": None, "prefix_cache_stats": {"reset": False, **PREFIX_STATS},
        "connector_prefix_cache_stats": None, "kv_cache_eviction_events": [], "spec_decoding_stats": None,
        "kv_connector_stats": None, "ec_connector_stats": None, "waiting_lora_adapters": {},
        "running_lora_adapters": {}, "cudagraph_stats": None, "perf_stats": None,
    }  # fmt: skip


def wire_array(dtype: str, code: str, shape: list[int], values: list[Any]) -> list[Any]:
    """One array as [dtype, shape, extension 3 with the raw bytes]."""
    return [dtype, shape, msgspec.msgpack.Ext(3, struct.pack(f"<{len(values)}{code}", *values))]


def wire_logprobs(token: int, count: int) -> list[Any]:
    """Logprobs of one new token: ids, values, and the rank of the sampled one."""
    ids = [token, *(token + 1 + j for j in range(count))]
    values = [-0.25, *(-0.25 - 0.5 * j for j in range(count))]
    shape = [1, len(ids)]
    return [
        wire_array("<i4", "i", shape, ids),
        wire_array("<f4", "f", shape, values),
        wire_array("<i4", "i", [1], [1]),
        None,
    ]


class Row:
    """One running request, from the positions of its wire form."""

    __slots__ = ("end", "logprobs", "name", "prompt", "rid", "sent")

    def __init__(self, request: list[Any]) -> None:
        sampling = request[3] or {}
        self.rid, self.prompt = request[0], len(request[1] or ())
        self.name = request[16] if len(request) > 16 and request[16] else self.rid
        self.end = sampling.get("max_tokens") or 16
        self.logprobs = sampling.get("logprobs")
        self.sent = 0

    def output(self, token: int, now: float) -> list[Any]:
        """The wire form of its next token."""
        logprobs = None if self.logprobs is None else wire_logprobs(token, self.logprobs)
        self.sent += 1
        reason = FINISH_LENGTH if self.sent >= self.end else None
        if self.sent == 1:
            events = [{"type": 1, "timestamp": now}, {"type": 2, "timestamp": now}]
            counts = {"num_prompt_tokens": self.prompt, "num_computed_tokens": self.prompt}
            zero = ("num_cached_tokens", "num_local_cached_tokens", "num_external_cached_tokens")
            counts |= dict.fromkeys((*zero, "num_cache_creation_tokens"), 0)
            return [self.rid, [token], logprobs, None, None, reason, None, events, None, None, None, counts]
        if reason is not None:
            return [self.rid, [token], logprobs, None, None, reason]
        return [self.rid, [token]] if logprobs is None else [self.rid, [token], logprobs]


class Mock:
    """The engine's side of the sockets."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.ids = encode(options.model, options.text)
        self.context = zmq.Context()
        self.step_s = 0.0
        self.rows: dict[str, Row] = {}
        self.fresh: list[str] = []
        self.log = StepLog()
        self.join(options.handshake)

    def join(self, handshake: str) -> None:
        """Shake hands, and connect to the front's sockets. Raises `SystemExit` when nobody answers."""
        identity, flags = (0).to_bytes(2, "little"), {"local": False, "headless": True}
        hello = self.context.socket(zmq.DEALER)
        hello.setsockopt(zmq.IDENTITY, identity)
        hello.setsockopt(zmq.LINGER, 5000)
        hello.connect(handshake)
        hello.send(encode_frame({"status": "HELLO", **flags}))
        if not hello.poll(JOIN_MS):
            raise SystemExit("the front does not answer HELLO")
        addresses = decode_frame(hello.recv())["addresses"]
        self.inputs = [self.socket(zmq.DEALER, address, identity) for address in addresses["inputs"]]
        for inbox in self.inputs:
            inbox.send(encode_frame(READY))
        self.output = self.socket(zmq.PUSH, addresses["outputs"][0], None)
        hello.send(encode_frame({"status": "READY", **flags}))
        self.poller = zmq.Poller()
        for inbox in self.inputs:
            self.poller.register(inbox, zmq.POLLIN)

    def socket(self, kind: int, address: str, identity: bytes | None) -> zmq.Socket[bytes]:
        """A socket without limits, as vLLM sets them."""
        made = self.context.socket(kind)
        if identity is not None:
            made.setsockopt(zmq.IDENTITY, identity)
        made.setsockopt(zmq.SNDHWM, 0)
        made.setsockopt(zmq.RCVHWM, 0)
        made.setsockopt(zmq.LINGER, 1000)
        made.connect(address)
        return made

    def drain(self) -> None:
        for inbox in self.inputs:
            while inbox.get(zmq.EVENTS) & zmq.POLLIN:
                self.take(inbox.recv_multipart(zmq.NOBLOCK))

    def take(self, frames: list[bytes]) -> None:
        kind = frames[0][0]
        if kind == ADD:
            row = Row(decode_frame(frames[1]))
            self.rows[row.rid] = row
            self.log.took(row.name, time.monotonic_ns())
            self.fresh.append(row.name)
        elif kind == ABORT:
            for rid in decode_frame(frames[1]):
                self.rows.pop(rid, None)
        elif kind == UTILITY:
            _, call, method, _ = decode_frame(frames[1])
            result = [call, None, [None, UTILITY_RESULTS.get(method)]]
            self.output.send(encode_frame([0, [], None, time.monotonic(), result]))

    def step(self) -> None:
        """One token for each row, in one message."""
        now, ids = time.monotonic(), self.ids
        outputs = [row.output(ids[row.sent % len(ids)], now) for row in self.rows.values()]
        ended = [row.rid for row in self.rows.values() if row.sent >= row.end]
        message: list[Any] = [0, outputs, scheduler_stats(len(self.rows)), now, *([None, ended] if ended else [])]
        for name in self.fresh:
            if name in self.log.requests:
                self.log.requests[name][1] = len(self.log.steps)
        self.fresh.clear()
        self.log.steps.append(time.monotonic_ns())
        self.output.send(encode_frame(message))
        for rid in ended:
            del self.rows[rid]

    def obey(self, words: list[str]) -> None:
        if words[0] == "step":
            self.step_s = float(words[1]) / 1000
        elif words[0] == "log":
            self.log.write(words[1])
        Commands.answer(ok=True)

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
                self.poller.poll(IDLE_MS)
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
                self.poller.poll(int(left * 1000) - 1)
                self.drain()
            else:
                time.sleep(left)


def main() -> None:
    """Serve until the end of stdin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--handshake", required=True, help="the front's handshake address")
    parser.add_argument("--model", required=True, help="folder with tokenizer.json")
    parser.add_argument("--text", required=True)
    mock = Mock(parser.parse_args())
    commands = Commands()
    Commands.answer(ready=True, pid=os.getpid())
    mock.run(commands)
    mock.context.destroy(0)


if __name__ == "__main__":
    main()
