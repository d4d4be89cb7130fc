"""`Front`: the link that an engine's scheduler calls, in the engine's own process. Nothing here ever blocks a step.

Life: `launch` (starts the services) or `connect` (they run already); then `wait_ingress`, `drain`, `push_generation`
in the scheduler's loop; `close` at the end. One thread calls it, the scheduler's.
"""

from __future__ import annotations

import logging
import os
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import zmq

from forebay import affinity
from forebay._version import __version__
from forebay.batch import GenerationBatch
from forebay.config import load
from forebay.errors import LinkError, PeerError
from forebay.facts import make_blob
from forebay.launch import Services, start_services
from forebay.ledger import Ledger
from forebay.links import LINGER_MS, Links
from forebay.listen import client_url
from forebay.settings import Settings
from forebay.topology import Peer, Topology, new_incarnation, shard_of
from forebay.wire import control, ingress
from forebay.wire.egress import EgressEncoder
from forebay.wire.frames import Kind, kind_of
from forebay.wire.messages import AbortRequest, ControlRequest, GenerateRequest, Hello, RequestFault

DRAIN_LIMIT = 256
"""Requests that one `drain` returns unless it is told otherwise."""
MONITOR_EVERY = 0.05
"""Seconds between looks at the links while the scheduler is busy (a look costs 1 us a link)."""

log = logging.getLogger("forebay.shim")


def should_launch(environ: Mapping[str, str], rank: int, switch: str = "FOREBAY") -> bool:
    """The launch gate for engines with several ranks: only rank 0, and only when the switch is set to 1 or true."""
    return rank == 0 and environ.get(switch, "").strip().lower() in ("1", "true", "yes", "on")


class Front:
    """The front, seen from the engine. Make it with `Front.launch` or `Front.connect`."""

    def __init__(
        self,
        links: Links,
        topology: Topology,
        incarnation: int,
        *,
        decoder: ingress.RequestDecoder | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._links = links
        self._topology = topology
        self._decoder = decoder
        self._on_close = on_close
        self._encoder = EgressEncoder(incarnation)
        self._detokenizers = links.of_role("detokenizer")
        self._apis = links.of_role("api")
        self._waiting: deque[Any] = deque()
        self._ledger = Ledger()
        self._next_look = 0.0
        self._closed = False
        self._warned = False
        self.services: Services | None = None
        """The services that `launch` started: their settings, run folder and state."""
        self.lost_rows = 0
        """Rows that could not be delivered because a detokenizer was away; each was answered with an error."""
        self.bad_frames = 0

    # ---------------------------------------------------------------- start and stop
    @classmethod
    def launch(
        cls,
        facts: Mapping[str, Any],
        settings: Settings | None = None,
        *,
        decoder: ingress.RequestDecoder | None = None,
        cores: Sequence[int] | None = None,
    ) -> Self:
        """Start the services beside this engine, under a supervisor that ends with it, and connect to them.

        `settings` name address, counts of processes and so on; by default they come from the environment
        (FOREBAY_...). `cores` bounds the front to the engine rank's own NUMA mask. The calling thread is narrowed to
        the engine's cores last. Returns at once: requests come when the services are ready. Raises `StartError` when
        the services cannot start.
        """
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        wanted = settings or load(config=None, environ=os.environ, overrides={})
        s = wanted
        plan = affinity.plan(affinity.allowed_cores(), s.apis, s.tokenizers, s.detokenizers, s.cores, within=cores)
        if wanted.tokenizer_path is None and isinstance(facts.get("tokenizer_path"), str):
            wanted = msgspec.structs.replace(wanted, tokenizer_path=facts["tokenizer_path"])
        services = start_services(wanted)
        try:
            front = cls.connect(
                services.run_dir,
                facts,
                apis=s.apis,
                tokenizers=s.tokenizers,
                detokenizers=s.detokenizers,
                decoder=decoder,
                io_cores=plan.services(),
                on_close=services.stop,
            )
        except BaseException:
            services.stop()
            raise
        front.services = services
        affinity.apply_to_thread(plan.of(Peer("engine", 0)))
        log.info("serving at %s, cores: %s", client_url(services.settings), plan.describe())
        return front

    @classmethod
    def connect(
        cls,
        run_dir: str | Path,
        facts: Mapping[str, Any],
        *,
        apis: int = 1,
        tokenizers: int = 1,
        detokenizers: int = 1,
        number: int = 0,
        decoder: ingress.RequestDecoder | None = None,
        io_cores: Sequence[int] = (),
        on_close: Callable[[], None] | None = None,
    ) -> Self:
        """Join services that run already, or are just starting, under `run_dir`.

        `facts` are the launch facts (see `forebay.facts`). `io_cores`: where ZeroMQ's I/O thread runs, normally the
        services' cores (empty: where the calling thread runs). Raises `SettingsError` for facts of a wrong type and
        `StartError` when the inbox cannot be bound.
        """
        blob = make_blob(dict(facts))
        topology = Topology(Path(run_dir), apis, tokenizers, detokenizers)
        incarnation = new_incarnation()
        me = Peer("engine", number)

        def greet() -> bytes:
            return control.encode_hello(
                Hello(
                    role=me.role,
                    index=me.number,
                    incarnation=incarnation,
                    pid=os.getpid(),
                    version=__version__,
                    blob=blob,
                )
            )

        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        before = affinity.thread_cores()
        # I/O threads are made with the first socket and keep the cores that this thread has at that moment.
        moved = affinity.apply_to_thread(io_cores)
        try:
            links = Links(context, me, topology.address, topology.peers(me), greet)
        except BaseException:
            context.destroy(0)
            raise
        finally:
            if moved:
                affinity.apply_to_thread(before)

        def close() -> None:
            context.destroy(LINGER_MS)
            if on_close is not None:
                on_close()

        return cls(links, topology, incarnation, decoder=decoder, on_close=close)

    def close(self) -> None:
        """Say goodbye and close the links; the services that `launch` started are stopped. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._links.close()
        if self._on_close is not None:
            self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---------------------------------------------------------------- requests in
    def wait_ingress(self, timeout_ms: int) -> bool:
        """Sleep until something waits for `drain`, at most `timeout_ms`. Lets go of the interpreter lock."""
        if self._waiting:
            return True
        if self._closed:
            return False
        ready = self._links.wait(timeout_ms)
        self._look(time.monotonic())
        return ready

    wait_request = wait_ingress

    def drain(self, max_recv: int = 0) -> list[Any]:
        """What has arrived, in order; never waits. At most `max_recv` entries (0 or less: 256), the rest next time.

        Entries are `GenerateRequest` (or what the injected decoder makes), `AbortRequest` and `ControlRequest`. A
        request that cannot be decoded is answered with 400 and left out; its neighbours are not touched.
        """
        limit = max_recv if max_recv > 0 else DRAIN_LIMIT
        waiting = self._waiting
        if not self._closed:
            now = time.monotonic()
            if now >= self._next_look:
                self._look(now)
            receive = self._links.receive
            while len(waiting) < limit and (frame := receive()) is not None:
                self._take(frame)
        if not waiting:
            return []
        if len(waiting) <= limit:
            out = list(waiting)
            waiting.clear()
            return out
        return [waiting.popleft() for _ in range(limit)]

    def _take(self, frame: bytes) -> None:
        try:
            kind = kind_of(frame)
            if kind is Kind.ADMIT:
                self._admit(frame)
            elif kind is Kind.ABORT:
                for abort in control.decode_aborts(frame):
                    self._abort(abort)
            elif kind is Kind.CONTROL:
                self._waiting.append(control.decode_control(frame))
            elif kind is Kind.HELLO:
                control.decode_hello(frame)
            else:
                raise PeerError(f"a {kind.name} frame has no business in the engine")
        except PeerError as error:
            self.bad_frames += 1
            log.warning("dropped a frame: %s", error)

    def _admit(self, frame: bytes) -> None:
        requests, faults = ingress.decode_admit(frame, self._decoder)
        ledger = self._ledger
        for request in requests:
            if not ledger.begin(request):
                continue
            early = ledger.aborted_early(request.rid)
            if early is None:
                self._waiting.append(request)
            elif early.reason == "user":
                self.push_abort(request.rid, "Abort in waiting queue")
            else:
                ledger.end(request.rid)
        for fault in faults:
            self._refuse(fault)

    def _refuse(self, fault: RequestFault) -> None:
        log.warning("dropped a request that cannot be decoded (rid %r): %s", fault.rid, fault.message)
        if fault.rid:
            # The header that names the owner is the part that cannot be read, so every api hears of it; all but
            # the owner ignore an error for a request that they do not have.
            frame = control.encode_faults([fault])
            for peer in self._apis:
                self._links.send(peer, frame)

    def _abort(self, abort: AbortRequest) -> None:
        if abort.abort_all:
            self._waiting.append(abort)
            return
        rids = self._ledger.named(abort.rid)
        for rid in rids:
            self._waiting.append(AbortRequest(rid, abort.reason, abort.message))
            if abort.reason != "user":
                self._ledger.end(rid)
        if not rids and abort.reason != "stop":
            self._ledger.abort_early(abort)

    # ---------------------------------------------------------------- results out
    def push_generation(self, batch: GenerationBatch) -> bool:
        """Send one step's rows. Never blocks; False once the front is closed (one warning says how many were lost).

        Rows that a missing or stopped detokenizer cannot take end with an error at their client, and come back as
        `AbortRequest` with the next `drain`. Raises `WireError` for columns that do not fit each other.
        """
        if self._closed:
            if not self._warned and batch.rids:
                self._warned = True
                log.warning("the front is closed; dropped the output of %d requests", len(batch.rids))
            return False
        frame = self._encoder.encode(batch)
        for peer in self._detokenizers:
            if not self._links.send(peer, frame):
                self._lost(batch.rids, peer)
        finish = batch.finish_reasons
        if finish is not None and finish.count(None) != len(finish):
            for rid, reason in zip(batch.rids, finish, strict=True):
                if reason is not None:
                    self._ledger.end(rid)
        return True

    def push_abort(self, rid: str, message: str, status_code: int | None = None, err_type: str | None = None) -> None:
        """End one request outside the output stream: its client gets the text so far, or an error with
        `status_code` (400 to 599)."""
        reason = {"type": "abort", "message": message, "status_code": status_code, "err_type": err_type}
        self.push_generation(GenerationBatch([rid], [array("q")], [reason]))

    def push_error(self, rid: str, text: str, status: int = 400, param: str | None = None) -> None:
        """Refuse one request: its client gets `status` and `text`. Raises `LinkError` when its api is away."""
        owner = self._ledger.owner(rid)
        if owner is None:
            return
        self._ledger.end(rid)
        self._to_api(owner, control.encode_faults([RequestFault(rid, status, text, None, param)]))

    def push_control_output(self, request: ControlRequest, output: Any) -> None:
        """Answer a control request: a struct becomes a map of field names, foreign values become strings.

        Raises `ValueError` for a request without a rid (a programming error) and `LinkError` when the api process
        that asked is away.
        """
        if not getattr(request, "rid", None):
            raise ValueError("a control answer needs the request that it answers: this one has no rid")
        self._to_api(request.api, control.encode_reply(request.rid, output))

    def push_health_ack(self) -> None:
        """Tell every api process that the engine is alive, while it is too busy for output."""
        for peer in self._apis:
            self._links.send(peer, self._links.greeting())

    def _to_api(self, number: int, frame: bytes) -> None:
        peer = Peer("api", number)
        if peer not in self._links.links or not self._links.send(peer, frame):
            raise LinkError(f"{peer} is away or its queue is full: the answer was not sent")

    # ---------------------------------------------------------------- bookkeeping
    def _lost(self, rids: list[str], peer: Peer) -> None:
        """Rows that did not reach a detokenizer: their clients get an error, the engine an abort."""
        self._encoder.send_full()
        shards = len(self._detokenizers)
        faults: dict[int, list[RequestFault]] = {}
        for rid in rids:
            owner = self._ledger.owner(rid)
            if owner is None or shard_of(rid, shards) != peer.number:
                continue
            self.lost_rows += 1
            self._ledger.end(rid)
            self._waiting.append(AbortRequest(rid, "lost", f"{peer} is away"))
            fault = RequestFault(rid, 503, f"{peer} is away; send the request again", "unavailable_error")
            faults.setdefault(owner, []).append(fault)
        for api, items in faults.items():
            self._links.send(Peer("api", api), control.encode_faults(items))

    def _look(self, now: float) -> None:
        """See which links came up or went down. A detokenizer that comes up must be told every row; the requests
        of an api process that went down are nobody's any more."""
        self._next_look = now + MONITOR_EVERY
        for peer, up in self._links.changes():
            log.info("link to %s is %s", peer, "up" if up else "down")
            if peer.role == "detokenizer":
                self._encoder.send_full()
            elif peer.role == "api" and not up:
                self._orphan(peer.number)

    def _orphan(self, api: int) -> None:
        for rid in self._ledger.of_api(api):
            self._ledger.end(rid)
            self._waiting.append(AbortRequest(rid, "client", f"api-{api} is away"))


__all__ = ["AbortRequest", "ControlRequest", "Front", "GenerateRequest", "should_launch"]
