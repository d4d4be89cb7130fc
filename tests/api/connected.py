"""An api process without sockets: bytes of clients go in, work for the tokenizer and answers come out."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from forebay.config import load
from forebay.role import Role
from forebay.topology import Peer
from forebay.wire import control, ingress
from forebay.wire.deltas import Deltas, encode_deltas
from forebay.wire.frames import Kind, kind_of
from forebay.wire.messages import End, Hello, WorkItem
from forebay_api.app import Api
from forebay_api.connection import Connection
from forebay_api.direct import Direct
from forebay_api.door import Door
from forebay_api.mailbox import Mailbox
from forebay_api.server import make_server

FACTS = b'{"context_length":8192,"vocab_size":50000,"model_path":"/m"}'
LENGTH = {"type": "length", "length": 4}


class Pipe(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.paused = False
        """Whether the process does not read for now: then it does not hear that its client leaves."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def take(self) -> bytes:
        """What was written since the last call."""
        written, self.written = self.written, b""
        return written


class Connected:
    """The process. `sent`: the frames that left it, by receiver; `full`: peers that take nothing."""

    def __init__(self, role: Role) -> None:
        self.sent: list[tuple[Peer, bytes]] = []
        self.full: set[Peer] = set()
        loop = asyncio.get_running_loop()
        self.mailbox = Mailbox(0, 1, self._send, loop)
        for name in ("tokenizer", "detokenizer", "engine"):
            blob = FACTS if name == "engine" else None
            hello = Hello(role=name, index=0, incarnation=1, pid=1, version="0", blob=blob)
            self.mailbox.take([control.encode_hello(hello)])
            self.mailbox.link_changed(Peer(name, 0), True)
        self.api = Api(role, self.mailbox)
        self.api.warm = True
        self.door = Door.of(role.settings, 1000)
        self.door.direct = Direct(self.api).take
        self.server = make_server(self.api, role.settings, self.door)
        self._loop = loop
        self._seq = 0
        self._rids: list[str] = []

    def _send(self, peer: Peer, frame: bytes) -> bool:
        if peer in self.full:
            return False
        self.sent.append((peer, frame))
        return True

    def connect(self) -> tuple[Connection, Pipe]:
        """A client."""
        make: Any = self.server.config.http_protocol_class
        state = self.server.server_state
        connection: Connection = make(config=self.server.config, server_state=state, app_state={}, _loop=self._loop)
        pipe = Pipe()
        connection.connection_made(pipe)
        return connection, pipe

    @property
    def tasks(self) -> int:
        """ASGI tasks that run."""
        return len(self.server.server_state.tasks)

    def frames(self, kind: Kind) -> list[bytes]:
        """The frames of a kind that have left, which are forgotten."""
        found = [frame for _, frame in self.sent if kind_of(frame) is kind]
        self.sent = [(peer, frame) for peer, frame in self.sent if kind_of(frame) is not kind]
        return found

    def work(self) -> list[WorkItem]:
        """The work that was sent since the last call."""
        return [item for frame in self.frames(Kind.WORK) for item, _ in ingress.decode_work(frame)]

    def text(self, rids: list[str], text: str) -> None:
        """One step with the same text for each of these."""
        self._seq += 1
        fresh = [rid for rid in rids if rid not in self._rids]
        self._rids += fresh
        starts = [(at, 5, 0) for at, rid in enumerate(rids) if rid in fresh]
        deltas = Deltas(source=0, epoch=1, seq=self._seq, rids=rids, texts=[text] * len(rids), starts=starts)
        self.mailbox.take([encode_deltas(deltas)])

    def end(self, rids: list[str], text: str = "", reason: dict[str, Any] | None = None) -> None:
        """The end of each of these."""
        self._seq += 1
        ends = [
            End(rid=rid, reason=reason or LENGTH, text=text, tokens=1, prompt_tokens=5, completion_tokens=2)
            for rid in rids
        ]
        self.mailbox.take([encode_deltas(Deltas(source=0, epoch=1, seq=self._seq, ends=ends))])


@asynccontextmanager
async def connected(**settings: Any) -> AsyncIterator[Connected]:
    """An api process that is ready; its role has a run folder and sockets of its own, which nobody else knows."""
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        found = load(config=None, environ={}, overrides={"run_dir": folder, **settings})
        with Role.open(Peer("api", 0), found, Path(folder)) as role:
            rig = Connected(role)
            yield rig
            for connection in list(rig.door.connections):
                connection._unset_keepalive_if_required()


async def settle() -> None:
    """Let everything run that is due."""
    for _ in range(10):
        await asyncio.sleep(0)


def post(path: str, body: Any, *headers: str, version: str = "1.1") -> bytes:
    """A request; `body`: bytes, or what is written as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"POST {path} HTTP/{version}", "host: x", "content-type: application/json", *headers]
    return "\r\n".join([*head, f"content-length: {len(data)}", "", ""]).encode() + data


def completion(**more: Any) -> bytes:
    """A completions request."""
    return post("/v1/completions", {"model": "default", "prompt": "hi", "max_tokens": 4, **more})


def answer(written: bytes) -> tuple[int, dict[bytes, bytes], Any]:
    """Status, headers and JSON of one whole answer."""
    head, _, body = written.partition(b"\r\n\r\n")
    line, *fields = head.split(b"\r\n")
    headers = dict(field.split(b": ", 1) for field in fields)
    assert len(body) == int(headers[b"content-length"])
    return int(line.split()[1]), headers, json.loads(body)
