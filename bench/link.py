#!/usr/bin/env python3
"""What the link costs an engine: CPU time of its thread in one `push_generation` or one `drain`, over real sockets.

    link.py                         all cases, as a table, with each setting of the allocator
    link.py --json --cases none,one_of_B --sizes 1,4096

A process plays the services: it sends requests, and reads what the engine pushes as fast as it can. Cases:

    none             token ids as a list of arrays, one id a row; no logprobs
    none_contiguous  the same from one int64 array
    one_of_B         one row of the batch has logprobs
    all7_lists       all seven families in every row (top 5, 2 given ids, hidden states of 64), as nested lists
    all7_arrays      the same as contiguous arrays
    drain_1k, drain_16k   256 requests with 1,024 or 16,384 prompt ids each, each in a frame of its own

`paced` false: one push after the other, of objects that are warm. `paced` true: a loop of 10 ms that makes fresh id
arrays each step and runs 16 MiB of other memory through the caches before it pushes, as an engine's step would.
Every figure is a median over the calls. `B` is the number of rows, or of requests.

The setting `kept` of the allocator is `Front.connect(keep_memory=True)`. The setting `raised` is MALLOC_MMAP_THRESHOLD_
and MALLOC_TRIM_THRESHOLD_ at 256 MiB: it must be in the engine's environment before it starts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from array import array
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import zmq
from _common import Output, end_on_sigterm, numbers, table, tied

from forebay import FlatFamily, Front, GenerationBatch, HiddenFamily, RaggedFamily
from forebay.topology import Peer, Topology
from forebay.wire import control, ingress
from forebay.wire.frames import Kind
from forebay.wire.messages import Mark, OpenItem, RequestHead, SamplingParams

PUSH_CASES = ("none", "none_contiguous", "one_of_B", "all7_lists", "all7_arrays")
DRAIN_CASES = {"drain_1k": 1024, "drain_16k": 16_384}
DRAIN_REQUESTS = 256
SIZES = [1, 64, 256, 1024, 4096]
KEYS = ("case", "B", "thread_cpu_us", "wall_us", "frame_bytes", "paced")
STEP_S = 0.01
TOP, GIVEN, HIDDEN = 5, 2, 64
ALLOCATORS = ("default", "kept", "raised")
RAISED = {"MALLOC_MMAP_THRESHOLD_": "268435456", "MALLOC_TRIM_THRESHOLD_": "268435456"}
WAIT_S = 20.0


# -------------------------------------------------------------------- the services' side
def serve(folder: str, pipe: Connection) -> None:
    """Be the tokenizer, the api and the detokenizer: send requests on command, read and count what is pushed."""
    topology = Topology(Path(folder))
    context = zmq.Context()
    to_engine = context.socket(zmq.PUSH)
    to_engine.setsockopt(zmq.SNDHWM, 0)
    inboxes = []
    for role in ("detokenizer", "api", "tokenizer"):
        inbox = context.socket(zmq.PULL)
        inbox.setsockopt(zmq.RCVHWM, 100_000)
        inbox.bind(topology.address(Peer(role, 0)))
        inboxes.append(inbox)
    to_engine.connect(topology.address(Peer("engine", 0)))
    pipe.send("bound")
    poller = zmq.Poller()
    for source in (*inboxes, pipe):
        poller.register(source, zmq.POLLIN)
    frames, size = 0, 0
    while True:
        poller.poll()
        while inboxes[0].get(zmq.EVENTS) & zmq.POLLIN:
            frame = inboxes[0].recv(zmq.NOBLOCK, False).buffer
            if frame[0] == Kind.MARK:  # as `Links` does it
                mark = control.decode_mark(frame)
                to_engine.send(control.encode_taken(Mark("detokenizer", 0, mark.link, mark.sent)))
                continue
            size = len(frame)
            frames += 1
        for inbox in inboxes[1:]:
            while inbox.get(zmq.EVENTS) & zmq.POLLIN:
                inbox.recv(zmq.NOBLOCK)
        if pipe.poll():
            command = pipe.recv()
            if command == "quit":
                context.destroy(0)
                return
            if isinstance(command, tuple):
                send_requests(to_engine, *command)
            pipe.send((frames, size))


def send_requests(socket: zmq.Socket[bytes], rids: list[str], ids: int, in_frame: int) -> None:
    """Send requests with `ids` prompt ids each, `in_frame` of them in a frame."""
    sampling = SamplingParams(max_new_tokens=256)
    heads = [RequestHead(rid=rid, sampling=sampling, stream=True) for rid in rids]
    prompt = array("q", range(1000, 1000 + ids))
    for at in range(0, len(heads), in_frame):
        some = heads[at : at + in_frame]
        opens = [OpenItem(rid=head.rid, stream=True, prompt_tokens=ids, prompt_tail=[1] * 6) for head in some]
        socket.send(ingress.encode_admit(some, [prompt] * len(some), opens))


class Services:
    """The other end, as the engine's process sees it."""

    def __init__(self, folder: str) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        spawn = multiprocessing.get_context("spawn")
        self._process = spawn.Process(target=serve, args=(folder, theirs), daemon=True)
        self._process.start()
        self.answer()  # bound

    def answer(self) -> Any:
        if not self._pipe.poll(WAIT_S):
            raise RuntimeError("the process that plays the services does not answer")
        return self._pipe.recv()

    def counts(self) -> tuple[int, int]:
        """Frames that came to the detokenizer, and the size of the last."""
        self._pipe.send("counts")
        frames, size = self.answer()
        return frames, size

    def request(self, rids: list[str], ids: int, in_frame: int) -> None:
        self._pipe.send((rids, ids, in_frame))
        self.answer()

    def close(self) -> None:
        self._pipe.send("quit")
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()


# -------------------------------------------------------------------- batches
def list_families(size: int) -> dict[str, Any]:
    """All seven families of `size` rows as nested lists."""

    def ragged(width: int) -> RaggedFamily:
        values = [[[-0.5 * j for j in range(width)]] for _ in range(size)]
        return RaggedFamily(values, [[list(range(row, row + width))] for row in range(size)])

    def flat() -> FlatFamily:
        return FlatFamily([[-0.125 * (row % 40)] for row in range(size)], [[1000 + row] for row in range(size)])

    hidden = HiddenFamily([[[0.25 + row] * HIDDEN] for row in range(size)])
    return families(flat, ragged, hidden)


def array_families(size: int) -> dict[str, Any]:
    """The same as contiguous arrays."""

    def ragged(width: int) -> RaggedFamily:
        return RaggedFamily(np.full((size, width), -0.5, np.float32), np.full((size, width), 7, np.int32))

    def flat() -> FlatFamily:
        return FlatFamily(np.full(size, -0.125, np.float32), np.arange(size, dtype=np.int32))

    return families(flat, ragged, HiddenFamily(np.full((size, HIDDEN), 0.25, np.float32)))


def families(
    flat: Callable[[], FlatFamily], ragged: Callable[[int], RaggedFamily], hidden: HiddenFamily
) -> dict[str, Any]:
    out: dict[str, Any] = {"output_hidden_states": hidden}
    for side in ("output", "input"):
        out[f"{side}_token_logprobs"] = flat()
        out[f"{side}_top_logprobs"] = ragged(TOP)
        out[f"{side}_token_ids_logprobs"] = ragged(GIVEN)
    return out


def batches(case: str, rids: list[str]) -> Iterator[GenerationBatch]:
    """Steps of an engine without end: fresh id arrays and a fresh list of rows each, the same families."""
    size = len(rids)
    prompts = [512] * size
    extra: dict[str, Any] = {}
    if case == "one_of_B":
        extra["output_token_logprobs"] = FlatFamily([[-0.125]], [[1000]], rows=[0])
    elif case == "all7_lists":
        extra = list_families(size)
    elif case == "all7_arrays":
        extra = array_families(size)
    contiguous = case in ("none_contiguous", "all7_arrays")
    step = 0
    while True:
        step += 1
        ids: Any = np.full(size, 1000 + step, np.int64)
        if not contiguous:
            ids = [array("q", (1000 + (row + step) % 5000,)) for row in range(size)]
        yield GenerationBatch(list(rids), ids, None, list(prompts), **extra)


# -------------------------------------------------------------------- measuring
class Bench:
    """The engine's side: a front, connected to the services, and the calls that are measured."""

    def __init__(self, folder: str, options: Namespace) -> None:
        self.options = options
        self.services = Services(folder)
        facts = {"served_model_name": "link", "context_length": 1 << 20}
        self.front = Front.connect(folder, facts, keep_memory=options.keep_memory)
        self.number = 0
        self.ballast = np.zeros(options.ballast_mib << 20, np.uint8)
        self.wait_for_links()

    def wait_for_links(self) -> None:
        """Until a first request has come and its row has gone: all links are up then."""
        (rid,) = self.admit(1, 1)
        self.push_all([rid])

    def admit(self, count: int, ids: int) -> list[str]:
        """New requests that the engine has taken."""
        rids = self.names(count)
        self.services.request(rids, ids, len(rids))
        taken = 0
        deadline = time.monotonic() + WAIT_S
        while taken < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {taken} of {count} requests came within {WAIT_S:g} s")
            self.front.wait_ingress(10)
            taken += len(self.front.drain(count))
        return rids

    def names(self, count: int) -> list[str]:
        self.number += count
        return [f"{at:032x}" for at in range(self.number - count, self.number)]

    def push_all(self, rids: list[str]) -> None:
        """End these requests. Raises `RuntimeError` when the rows do not arrive."""
        reasons: list[dict[str, Any] | None] = [{"type": "length", "length": 1}] * len(rids)
        before = self.services.counts()[0]
        self.front.push_generation(GenerationBatch(rids, np.zeros(len(rids), np.int64), reasons, [1] * len(rids)))
        deadline = time.monotonic() + WAIT_S
        while self.services.counts()[0] == before:
            if time.monotonic() > deadline:
                raise RuntimeError("a pushed frame did not arrive")
            time.sleep(0.01)
            self.front.drain()

    def push(self, case: str, size: int, paced: bool) -> dict[str, Any]:
        """One case of pushes."""
        rids = self.admit(size, 1)
        made = batches(case, rids)
        warm = None if paced else [next(made) for _ in range(4)]
        calls = self.options.paced_calls if paced else max(20, min(self.options.calls, 400_000 // size))
        first = self.services.counts()[0]
        cpu, wall = [], []
        due = time.monotonic()
        for call in range(calls + 3):
            batch = warm[call % len(warm)] if warm else next(made)
            if paced:
                due = self.pace(due)
            elif call % 16 == 15:
                time.sleep(0.002 + size * 1e-6)  # the reader shall never be so far behind that a queue is full
            begin, begin_cpu = time.perf_counter_ns(), time.thread_time_ns()
            self.front.push_generation(batch)
            end_cpu, end = time.thread_time_ns(), time.perf_counter_ns()
            if call >= 3:  # the first steps send what later ones need not repeat
                cpu.append((end_cpu - begin_cpu) / 1e3)
                wall.append((end - begin) / 1e3)
        size_of_frame = self.received(first + calls + 3)
        self.push_all(rids)
        return self.row(case, size, cpu, wall, size_of_frame, paced)

    def received(self, expected: int) -> int:
        """Wait until all frames have arrived; the size of the last. Raises `RuntimeError` when some were refused."""
        deadline = time.monotonic() + WAIT_S
        while (counts := self.services.counts())[0] < expected:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{expected - counts[0]} frames did not arrive")
            time.sleep(0.01)
        if self.front.lost_rows:
            raise RuntimeError(f"{self.front.lost_rows} rows were refused by the link")
        return counts[1]

    def pace(self, due: float) -> float:
        """The rest of a step: other memory goes through the caches, then a sleep; the end of the next step."""
        self.ballast += 1
        time.sleep(max(0.0, due - time.monotonic()))
        return max(due, time.monotonic() - STEP_S) + STEP_S

    def drain(self, case: str, paced: bool) -> dict[str, Any]:
        """One case of drains: all requests wait in the inbox before the clock starts."""
        ids = DRAIN_CASES[case]
        cpu, wall = [], []
        for turn in range(self.options.drains + 1):
            rids = self.names(DRAIN_REQUESTS)
            self.services.request(rids, ids, self.options.in_frame)
            time.sleep(0.2)  # ZeroMQ's thread moves them into the inbox
            if paced:
                self.ballast += 1
            taken, spent, took = self.timed_drains()
            if taken != DRAIN_REQUESTS:
                raise RuntimeError(f"{taken} of {DRAIN_REQUESTS} requests came")
            if turn:
                cpu.append(spent / 1e3)
                wall.append(took / 1e3)
            self.push_all(rids)
        return self.row(case, DRAIN_REQUESTS, cpu, wall, DRAIN_REQUESTS * ids * 8, paced)

    def timed_drains(self) -> tuple[int, int, int]:
        """Drain until all are there: requests, CPU ns, wall ns. One call normally; more when frames are late."""
        taken = spent = took = 0
        deadline = time.monotonic() + WAIT_S
        while taken < DRAIN_REQUESTS and time.monotonic() < deadline:
            begin, begin_cpu = time.perf_counter_ns(), time.thread_time_ns()
            taken += len(self.front.drain())
            spent += time.thread_time_ns() - begin_cpu
            took += time.perf_counter_ns() - begin
        return taken, spent, took

    @staticmethod
    def row(case: str, size: int, cpu: list[float], wall: list[float], frame_bytes: int, paced: bool) -> dict[str, Any]:
        """One line, in the order of `KEYS`."""
        return dict(zip(KEYS, (case, size, median(cpu), median(wall), frame_bytes, paced), strict=True))

    def run(self) -> Iterator[dict[str, Any]]:
        """All cases that were asked for."""
        paces = [False, True] if self.options.paced is None else [self.options.paced]
        for case in self.options.cases.split(","):
            for paced in paces:
                if case in DRAIN_CASES:
                    yield self.drain(case, paced)
                    continue
                for size in self.options.sizes:
                    yield self.push(case, size, paced)

    def close(self) -> None:
        self.front.close()
        self.services.close()


# -------------------------------------------------------------------- the command
def parse() -> Namespace:
    """The options."""
    cases = (*PUSH_CASES, *DRAIN_CASES)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(cases), help="comma-separated")
    parser.add_argument("--sizes", type=numbers, default=SIZES, help="rows of a batch, comma-separated")
    parser.add_argument("--calls", type=int, default=1000, help="pushes a case, back to back; fewer of large batches")
    parser.add_argument("--paced-calls", type=int, default=150, help="pushes a case, paced")
    parser.add_argument("--ballast-mib", type=int, default=16, help="paced: memory that goes through the caches")
    parser.add_argument("--in-frame", type=int, default=1, help="drains: requests that come in one frame")
    parser.add_argument("--drains", type=int, default=9, help="drains a case")
    parser.add_argument("--paced", action=argparse.BooleanOptionalAction, help="only paced, or only back to back")
    parser.add_argument("--allocators", help="comma-separated, of default, kept and raised [--json: default]")
    parser.add_argument("--keep-memory", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="one line a case instead of a table")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.cases.split(",")) - set(cases):
        parser.error(f"unknown case {', '.join(sorted(unknown))}: there are {', '.join(cases)}")
    options.allocators = (options.allocators or ("default" if options.json else ",".join(ALLOCATORS))).split(",")
    if unknown := set(options.allocators) - set(ALLOCATORS):
        parser.error(f"unknown allocator {', '.join(sorted(unknown))}: there are {', '.join(ALLOCATORS)}")
    return options


def work(options: Namespace) -> None:
    """The measuring process: prints a line a case."""
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        bench = Bench(folder, options)
        try:
            for row in bench.run():
                print(json.dumps(row), flush=True)
        finally:
            bench.close()


def rows_of(allocator: str) -> Iterator[dict[str, Any]]:
    """The rows of a measuring process with this setting of the allocator: it is read when a process starts."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    environ |= RAISED if allocator == "raised" else {}
    command = [sys.executable, __file__, *sys.argv[1:], "--worker"]
    if allocator == "kept":
        command.append("--keep-memory")
    with subprocess.Popen(
        tied(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environ
    ) as worker:
        try:
            assert worker.stdout is not None
            yield from map(json.loads, worker.stdout)
        finally:
            worker.terminate()
    if worker.returncode > 0:
        raise SystemExit(f"the measuring process ended with {worker.returncode}")


def main() -> int:
    """Measure with each setting of the allocator."""
    options = parse()
    end_on_sigterm()
    if options.worker:
        work(options)
        return 0
    output = Output(options.json)
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for allocator in options.allocators:
        for row in rows_of(allocator):
            if options.json:
                output.add(row if len(options.allocators) == 1 else {**row, "allocator": allocator})
            key = (row["case"], row["B"], row["paced"])
            rows.setdefault(key, {"frame_bytes": row["frame_bytes"]})[allocator] = row
    if not options.json:
        heads = [f"{figure} ({allocator})" for allocator in options.allocators for figure in ("CPU us", "wall us")]
        lines = []
        for (case, size, paced), found in rows.items():
            figures = [found[one][name] for one in options.allocators for name in ("thread_cpu_us", "wall_us")]
            lines.append([case, size, "paced" if paced else "back to back", *figures, found["frame_bytes"]])
        print(table(("case", "B", "loop", *heads, "frame bytes"), lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
