"""A `Front` on real sockets, in the test's process: the test plays every service. Nothing may be left at the end."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import zmq

from forebay import Front, GenerationBatch
from forebay.links import Links
from forebay.rundir import open_run_dir
from forebay.topology import Peer, Topology, shard_of
from forebay.wire import control, ingress
from forebay.wire.egress_decoder import EgressDecoder, EgressFrame
from forebay.wire.frames import Kind, kind_of, pack_frame
from forebay.wire.messages import (
    AbortRequest,
    ControlReply,
    ControlRequest,
    Hello,
    Ids,
    OpenItem,
    RequestFault,
    RequestHead,
)
from forebay.wire.replay import Claim, encode_claim

T = TypeVar("T")
ENGINE, TOKENIZER = Peer("engine", 0), Peer("tokenizer", 0)
LIFE = 1
"""The life of every service, unless a test says otherwise."""
FILLER = pack_frame(Kind.ADMITTED, b"x" * 100_000)
STEADY = 0.1
"""Seconds without room after which a queue is full."""
SECONDS = 5.0
"""What a test waits at most for anything."""


def until(condition: Callable[[], T], what: str) -> T:
    """Poll until `condition` gives something true, and return that."""
    deadline = time.monotonic() + SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true within {SECONDS:g} s"
        time.sleep(0.001)
    return value


def head(rid: str, **fields: Any) -> RequestHead:
    return RequestHead(rid=rid, **{"life": LIFE, **fields})


def rids_of_shard(shard: int, shards: int, count: int = 1) -> list[str]:
    """Request ids that a detokenizer owns."""
    names = (f"r{i}" for i in range(1000))
    return [rid for rid in names if shard_of(rid, shards) == shard][:count]


def rows(*rids: str, **columns: Any) -> GenerationBatch:
    """One step with one token for each of these requests."""
    return GenerationBatch(list(rids), [array("q", [7]) for _ in rids], **columns)


class Rig:
    """The services of one front as bare links, and the engine's end of it."""

    def __init__(self, folder: Path, apis: int, detokenizers: int) -> None:
        self.topology = Topology(folder, apis=apis, detokenizers=detokenizers)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.links: dict[Peer, Links] = {}
        self.deaf: set[Peer] = set()
        """Services that do not read what they are sent."""
        self._frames: dict[Peer, deque[bytes]] = defaultdict(deque)
        self._fronts: list[Front] = []
        self._marks = 0
        self.lives: Counter[Peer] = Counter()
        """How often each service has started: the number of its present life."""

    # ---------------------------------------------------------------- who is there
    @property
    def peers(self) -> list[Peer]:
        """The services."""
        return self.topology.peers(ENGINE)

    @property
    def front(self) -> Front:
        """The engine's end, connected last."""
        return self._fronts[-1]

    def start(self, peer: Peer) -> None:
        """A service starts, or starts again as another process."""

        self.lives[peer] += 1
        life = self.lives[peer]

        def greet() -> bytes:
            return control.encode_hello(Hello(role=peer.role, index=peer.number, incarnation=life, pid=1, version="t"))

        self.links[peer] = Links(self.context, peer, self.topology.address, [ENGINE], greet)

    def stop(self, peer: Peer) -> None:
        """A service dies; what it has not read is gone."""
        self.links.pop(peer).close(0)
        self._frames.pop(peer, None)

    def connect(self, **options: Any) -> Front:
        """The engine joins."""
        facts = options.pop("facts", {})
        counts = {"apis": self.topology.apis, "detokenizers": self.topology.detokenizers}
        front = Front.connect(self.topology.run_dir, facts, **{**counts, **options})
        self._fronts.append(front)
        return front

    def link_up(self) -> None:
        """Wait until every running service is linked with the engine in both directions, and greeted by it."""
        for peer in self.links:
            self.wait_up(peer)
        until(lambda: not self.front.drain() and self.front._links.received >= len(self.links), "the greetings")

    def wait_up(self, peer: Peer) -> Hello:
        """Wait until a service and the engine are linked; the greeting that the service has got."""
        until(lambda: self._look() and self.up(peer) and self.links[peer].is_up(ENGINE), f"the link to {peer}")
        return control.decode_hello(self.next(peer, Kind.HELLO))

    def wait_down(self, peer: Peer) -> None:
        """Wait until the engine has noticed that a service is away, and ZeroMQ takes nothing for it any more."""
        until(lambda: self._look() and not self.up(peer), f"the engine noticing that {peer} is away")
        link = self.front._links.links[peer]._socket
        until(lambda: not int(link.get(zmq.EVENTS)) & zmq.POLLOUT, f"the end of the queue for {peer}")

    def _look(self) -> bool:
        self.pump()
        self.front.wait_ingress(1)
        return True

    def up(self, peer: Peer) -> bool:
        """Whether the engine sees its link to a service standing."""
        return self.front._links.is_up(peer)

    def fill(self, peer: Peer) -> None:
        """Send to a service that does not read until its queue takes no more, for a while: on a loaded machine ZeroMQ's
        threads find room later."""
        self.deaf.add(peer)
        since = time.monotonic()

        def full() -> bool:
            nonlocal since
            if self.front._links.send(peer, FILLER):
                since = time.monotonic()
            return time.monotonic() - since > STEADY

        until(full, f"a full queue of {peer}")

    # ---------------------------------------------------------------- frames to the engine
    def send(self, peer: Peer, frame: bytes) -> None:
        """A service sends the engine a frame."""
        until(lambda: self.links[peer].send(ENGINE, frame), f"the frame of {peer} leaving")

    def admit(self, *heads: RequestHead, ids: Sequence[Ids] | None = None) -> None:
        """The tokenizer admits requests, with one id each unless `ids` says more."""
        self.send(TOKENIZER, ingress.encode_admit(heads, ids or [array("q", [1])] * len(heads)))

    def announce(self, *heads: RequestHead) -> None:
        """The tokenizer admits requests with their announcements, so that they can be told again; they are drained."""
        opens = [OpenItem(rid=head.rid, api=head.api) for head in heads]
        self.send(TOKENIZER, ingress.encode_admit(heads, [array("q", [1])] * len(heads), opens))
        self.drain(len(heads))

    def claim(self, shard: int = 0, begun: Sequence[str] = (), fresh: Sequence[str] = (), **fields: Any) -> None:
        """An api process (the first, unless told) says what it waits for from the present life of a detokenizer."""
        claim = Claim(
            **{"api": 0, "life": self.lives[Peer("detokenizer", shard)], "step": 0, **fields},
            shard=shard,
            begun=list(begun),
            fresh=list(fresh),
        )
        self.send(Peer("api", claim.api), encode_claim(claim))

    def turn(self, until_true: Callable[[], object], what: str) -> None:
        """Let the engine drain until something is true; it must get nothing meanwhile."""

        def look() -> object:
            self.front.wait_ingress(1)
            assert self.front.drain() == []
            self.pump()
            return until_true()

        until(look, what)

    def abort(self, rid: str, reason: str = "client", **fields: Any) -> None:
        """The first api process asks for an abort."""
        self.send(Peer("api", 0), control.encode_aborts([AbortRequest(rid, reason, **fields)]))

    def call(self, rid: str = "c", type_: str = "GetInternalState", api: int = 0) -> ControlRequest:
        """An api process makes a control call; returns it as the engine gets it."""
        self.send(Peer("api", api), control.encode_control(ControlRequest(rid, api, type_)))
        (request,) = self.drain(1)
        assert isinstance(request, ControlRequest)
        return request

    # ---------------------------------------------------------------- the engine's side
    def drain(self, count: int) -> list[Any]:
        """Drain until `count` entries have come."""
        out: list[Any] = []

        def enough() -> bool:
            self.front.wait_ingress(1)
            out.extend(self.front.drain())
            return len(out) >= count

        until(enough, f"{count} entries")
        assert len(out) == count, out
        return out

    def settle(self, peer: Peer = TOKENIZER) -> list[Any]:
        """What the engine drains until it has taken everything that a service has sent so far."""
        self._marks += 1
        mark = f"mark-{self._marks}"
        self.send(peer, ingress.encode_admit([head(mark, life=1 << 62)], [array("q")]))
        out: list[Any] = []

        def marked() -> bool:
            self.front.wait_ingress(1)
            out.extend(self.front.drain())
            return any(getattr(entry, "rid", None) == mark for entry in out)

        until(marked, f"the mark of {peer}")
        self.front._ledger.end(mark)
        return [entry for entry in out if getattr(entry, "rid", None) != mark]

    def run(self, *heads: RequestHead) -> None:
        """Admit requests and drain them: they are in the engine then."""
        self.admit(*heads)
        self.drain(len(heads))

    # ---------------------------------------------------------------- frames from the engine
    def pump(self) -> bool:
        """Let every service that is not deaf read what has come for it. False, so that it can stand before an `or`."""
        for peer, links in self.links.items():
            links.changes()
            while peer not in self.deaf and (frame := links.receive()) is not None:
                self._frames[peer].append(frame)
        return False

    def take(self, peer: Peer, *kinds: Kind) -> bytes | None:
        """The next frame of one of these kinds that a service has got; older ones of other kinds are dropped."""
        self.pump()
        frames = self._frames[peer]
        while frames:
            frame = frames.popleft()
            if kind_of(frame) in kinds:
                return frame
        return None

    def next(self, peer: Peer, *kinds: Kind) -> bytes:
        """Wait for the next frame of one of these kinds."""
        frame = until(lambda: self.take(peer, *kinds), f"a {kinds[0].name} frame for {peer}")
        assert frame is not None
        return frame

    def faults(self, api: int = 0) -> list[RequestFault]:
        """The errors in the next frame of errors for an api process."""
        return control.decode_faults(self.next(Peer("api", api), Kind.ERROR))

    def reply(self, api: int = 0) -> ControlReply:
        """The next answer to a control call."""
        return control.decode_reply(self.next(Peer("api", api), Kind.REPLY))

    def step(self, decoder: EgressDecoder | None = None, shard: int = 0) -> EgressFrame:
        """The next step that a detokenizer gets."""
        return (decoder or EgressDecoder()).decode(self.next(Peer("detokenizer", shard), Kind.EGRESS, Kind.STEP))

    def hears_nothing(self, kind: Kind, api: int = 0) -> bool:
        """Whether an api process has got no frame of a kind before the greeting that the engine sends now."""
        peer = Peer("api", api)
        self.front.push_health_ack()
        until(lambda: self.pump() or any(kind_of(frame) is Kind.HELLO for frame in self._frames[peer]), "the greeting")
        return all(kind_of(frame) is not kind for frame in self._frames[peer])

    def close(self) -> None:
        """Everything ends; the services first, so that nobody waits for one that does not read."""
        for peer in list(self.links):
            self.stop(peer)
        for front in self._fronts:
            front.close()
        self.context.destroy(0)


@contextlib.contextmanager
def rig(*, apis: int = 1, detokenizers: int = 1, connected: bool = True) -> Iterator[Rig]:
    """Services that run, with the engine linked unless `connected` is False; at the end all is gone."""
    threads, tasks = set(threading.enumerate()), _tasks()
    made = open_run_dir(None)
    one = Rig(made.path, apis, detokenizers)
    try:
        for peer in one.peers:
            one.start(peer)
        if connected:
            one.connect()
            one.link_up()
        yield one
    finally:
        one.close()
    assert one.context.closed
    assert set(threading.enumerate()) == threads
    until(lambda: _tasks() <= tasks, "the end of ZeroMQ's threads")
    assert list(made.path.glob("*.sock")) == []
    made.close()
    assert not made.path.exists()


def _tasks() -> int:
    return len(os.listdir("/proc/self/task"))
