#!/usr/bin/env python3
"""What no front of this shape can go below here: a ZeroMQ hop and a write to a client, with none of forebay's code.

    floor.py                                      64 streams, 10 ms steps
    floor.py --json --streams 1,64,256 --step-ms 10,40

A frame goes source -> relay -> sender over ipc, in processes of their own, once a step; the sender writes one event of
usual size to each of its clients. The relay does nothing but receive and send, the sender nothing but join three pieces
of bytes. CPU microseconds a step from schedstat, medians over the rounds:

    source_us, source_io_us     the thread that sends, and ZeroMQ's thread beside it
    relay_us, relay_io_us       the hop: what the detokenizer would cost if text came for nothing
    sender_us, sender_io_us     receive and write to all streams: what the api would cost if events came for nothing
    floor_us_per_token          all of that for each stream
    write_us                    what each further stream costs the sender
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import uvloop
import zmq
from _common import Output, end_on_sigterm, floats, middle, numbers
from _cpu import threads, used

COLUMNS = (
    "streams", "step_ms", "source_us", "source_io_us", "relay_us", "relay_io_us", "sender_us", "sender_io_us",
    "floor_us_per_token", "write_us",
)  # fmt: skip
EVENT = (b"c6\r\ndata: ", b'{"id":"cmpl-0","object":"text_completion","choices":[{"index":0,"text":"', b'"}]}\n\n\r\n')
SETTLE_S = 0.5
STEPS_AT_LEAST = 150
GIVE_UP_S = 30.0


def relay(inbox: str, outbox: str) -> None:
    """Receive and send until an empty frame has passed."""
    context = zmq.Context()
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.bind(inbox)
    push.connect(outbox)
    while frame := pull.recv():
        push.send(frame)
    push.send(b"")
    context.destroy(linger=1000)


def sender(inbox: str, streams: int, ready: Connection) -> None:
    """Write an event to each of `streams` clients for each frame."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        clients: list[asyncio.WriteTransport] = []
        done = loop.create_future()

        class Client(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                clients.append(transport)  # type: ignore[arg-type]
                if len(clients) == streams:
                    writes.extend(client.write for client in clients)
                    ready.send("ready")

        writes: list[Any] = []
        server = await loop.create_server(Client, "127.0.0.1", 0, backlog=max(100, streams))
        context = zmq.Context()
        pull = context.socket(zmq.PULL)
        pull.bind(inbox)
        head, prefix, suffix = EVENT

        def on_frame() -> None:
            while True:
                try:
                    frame = pull.recv(zmq.NOBLOCK)
                except zmq.Again:
                    return
                if not frame:
                    done.set_result(None)
                    return
                for write in writes:
                    write(b"".join((head, prefix, b"word", suffix)))

        loop.add_reader(pull.getsockopt(zmq.FD), on_frame)
        loop.call_soon(on_frame)
        ready.send(server.sockets[0].getsockname()[1])
        await done
        server.close()
        context.destroy(linger=0)

    uvloop.run(run())


def readers(port: int, streams: int) -> None:
    """The clients: read whatever comes, until the other side closes."""
    with selectors.DefaultSelector() as selector:
        for _ in range(streams):
            selector.register(socket.create_connection(("127.0.0.1", port)), selectors.EVENT_READ)
        open_ = streams
        while open_:
            for key, _ in selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if not sock.recv(65536):
                    selector.unregister(sock)
                    sock.close()
                    open_ -= 1


def one_round(streams: int, step_ms: float, seconds: float) -> dict[str, Any]:
    """One row. The processes are this one's children and end with the round."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        first, second = f"ipc://{folder}/relay", f"ipc://{folder}/sender"
        ours, theirs = spawn.Pipe()
        children = [
            spawn.Process(target=relay, args=(first, second), daemon=True),
            spawn.Process(target=sender, args=(second, streams, theirs), daemon=True),
        ]
        for child in children:
            child.start()
        try:
            port = told(ours)
            children.append(spawn.Process(target=readers, args=(port, streams), daemon=True))
            children[-1].start()
            told(ours)
            return paced(first, [child.pid or 0 for child in children[:2]], streams, step_ms, seconds)
        finally:
            for child in children:
                child.join(2.0)
                child.kill()
                child.join()


def told(pipe: Connection) -> Any:
    """The next word of a child. Raises `TimeoutError`."""
    if not pipe.poll(GIVE_UP_S):
        raise TimeoutError("a child process did not get ready")
    return pipe.recv()


def paced(inbox: str, pids: Sequence[int], streams: int, step_ms: float, seconds: float) -> dict[str, Any]:
    """Send a frame a step at absolute times, and read the threads' times before and after."""
    context = zmq.Context()
    push = context.socket(zmq.PUSH)
    push.connect(inbox)
    frame = bytes(40 + 8 * streams)
    steps = max(STEPS_AT_LEAST, int(seconds * 1000 / step_ms))
    settle = int(SETTLE_S * 1000 / step_ms)
    spent = 0
    begin = time.monotonic()
    before = threads([os.getpid(), *pids])
    for step in range(settle + steps):
        time.sleep(max(0.0, begin + step * step_ms / 1000 - time.monotonic()))
        if step == settle:
            spent, before = 0, threads([os.getpid(), *pids])
        start = time.thread_time_ns()
        push.send(frame)
        spent += time.thread_time_ns() - start
    cpu = used(before, threads([os.getpid(), *pids]))
    push.send(b"")
    context.destroy(linger=1000)
    row: dict[str, Any] = {"streams": streams, "step_ms": step_ms, "source_us": spent / 1000 / steps}
    for name, pid in (("source", os.getpid()), ("relay", pids[0]), ("sender", pids[1])):
        mine = cpu[str(pid)]
        if pid != os.getpid():
            row[f"{name}_us"] = mine["main"] * 1e6 / steps
        row[f"{name}_io_us"] = sum(part for thread, part in mine.items() if thread.startswith("ZMQbg/IO")) * 1e6 / steps
    row["floor_us_per_token"] = sum(part for name, part in row.items() if name.endswith("_us")) / streams
    return row


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=numbers, default=[1, 64, 256], help="comma-separated")
    parser.add_argument("--step-ms", type=floats, default=[10.0], help="comma-separated")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one line a case instead of a table")
    return parser.parse_args()


def main() -> int:
    """Run the cases; those of one step length in turn in each round, as the machine's mood changes."""
    options = parse()
    end_on_sigterm()
    output = Output(options.json, COLUMNS)
    for step_ms in options.step_ms:
        cases: dict[int, list[dict[str, Any]]] = {streams: [] for streams in {1, *options.streams}}
        for _ in range(options.rounds):
            for streams, rows in cases.items():
                rows.append(one_round(streams, step_ms, options.seconds))
        alone = middle(cases[1])["sender_us"]
        for streams in options.streams:
            row = middle(cases[streams])
            more = (row["sender_us"] - alone) / (streams - 1) if streams > 1 else None
            output.add({**row, "write_us": more})
    output.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
