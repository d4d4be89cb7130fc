"""The detokenizer process: frames in, `Detokenizer` in the middle, frames out. No rule about text stands here."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tokenizers import Tokenizer

from forebay.errors import PeerError, SettingsError
from forebay.facts import LaunchFacts
from forebay.memory import give_back
from forebay.metric_table import WORK
from forebay.role import Role
from forebay.topology import Peer
from forebay.wire import control
from forebay.wire.deltas import encode_deltas
from forebay.wire.egress_decoder import EgressDecoder
from forebay.wire.frames import Kind
from forebay.wire.messages import RequestFault, Unheard
from forebay.wire.replay import Replay, decode_replay
from forebay_detokenizer.tables import Tables
from forebay_detokenizer.worker import Detokenizer

T = TypeVar("T")

ENGINE = Peer("engine", 0)
EARLY_FRAMES = 4096
"""Frames that wait while the tokenizer is being loaded."""
TICK = 0.25
"""Seconds between looks at rows that wait for their `OpenItem`."""
DOUBT = 2
"""Times `open_wait` that an announced request may be without a row before its api process is asked about it; at most
twice that. One that waits in the engine's queue is asked about again each time: 33 bytes."""


class DetokenizerService:
    """Drives one `Detokenizer` for `Role.serve`. Until the tokenizer is loaded, frames wait."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._core: Detokenizer | None = None
        self._decoder = EgressDecoder()
        self._early: deque[tuple[Kind, bytes]] = deque(maxlen=EARLY_FRAMES)
        self._tables: Tables | None = None
        self._engine: int | None = None
        """The life of the engine that has greeted."""
        self._synced = True
        """Whether its steps are taken; False while its link has still to tell what this process missed."""
        self._next_tick = self._next_doubt = 0.0
        self._touched = False
        """Whether there may be something to send since the last turn."""
        self._senders = {peer.number: role.links.links[peer].send for peer in role.links.of_role("api")}
        self._steps = role.counters.counter("engine_steps_total")
        self._step_seconds = role.counters.histogram("detokenize_seconds", WORK)
        role.tally.show(lambda: 0 if self._core is None else len(self._core), "detokenizer")
        if role.settings.tokenizer_path is not None:
            self._tables = load_tables(role.settings.tokenizer_path)

    def handle(self, kind: Kind, frame: bytes) -> None:
        """One frame. Everything but a greeting waits until the engine's facts are known."""
        if kind is Kind.HELLO:
            engine = self._role.hellos.get(ENGINE)
            if engine is not None:
                self._decoder.greeted(engine.incarnation)
                if engine.incarnation != self._engine:
                    self._engine, self._synced = engine.incarnation, not engine.replays
            self._learn()
            self._meet()
        elif kind not in (Kind.STEP, Kind.OPEN, Kind.EGRESS, Kind.ABORT, Kind.REPLAY):
            raise PeerError(f"a {kind.name} frame has no business in a detokenizer")
        elif self._core is None:
            self._early.append((kind, frame))
        else:
            self._work(self._core, kind, frame)

    def next_frame(self, until: float) -> bytes | None:
        """The next frame that is not a steady step; those are served and sent as they come. None: nothing comes, or it
        is `until`."""
        core, links = self._core, self._role.links
        lane = None if core is None or self._touched or not self._synced else core.lane(self._decoder)
        if core is None or lane is None:
            return links.next()
        passed = lane.run(links.raw_receive, self._senders, until)
        links.received_elsewhere(passed.received, passed.received_bytes)
        if passed.steps:
            self._steps.add(passed.steps)
            self._step_seconds.observe(passed.seconds, passed.steps)
        for group in passed.undelivered:
            self._touched = True
            core.fail(group.rids, "the api process does not take what it is sent")
            core.forget_rows(group.api)
        return passed.frame

    def _work(self, core: Detokenizer, kind: Kind, frame: bytes) -> None:
        now = time.monotonic()
        self._touched = True
        if kind in (Kind.STEP, Kind.EGRESS) and not self._synced:
            return  # it comes again
        if kind is Kind.STEP or kind is Kind.EGRESS:
            step = self._checked(core, self._decoder.decode, frame)
            if core.replaying:
                core.reach(step.seq, now)
            core.step(step, now)
            # Per step, never per token: 0.5 us together.
            self._steps.add()
            self._step_seconds.observe(time.monotonic() - now)
        elif kind is Kind.REPLAY:
            self._replay(core, decode_replay(frame), now)
        elif kind is Kind.OPEN:
            core.open(control.decode_opens(frame), now)
        else:
            # After `user` the engine ends the request itself, and its client waits for that end.
            core.abort([abort.rid for abort in control.decode_aborts(frame) if abort.reason != "user"])

    def _replay(self, core: Detokenizer, replay: Replay, now: float) -> None:
        """The link goes on where another life of this process was. Raises `PeerError` for a replay that is not due."""
        if replay.part == "more":
            core.more(replay, now)
            return
        if replay.part == "begin" and self._synced:
            raise PeerError("a replay has begun that this process does not wait for")
        self._synced = True
        if replay.part == "begin":
            self._decoder.anew()
            core.begin_replay(replay, now)
        elif core.replaying:
            core.end_replay(now)

    def _checked(self, core: Detokenizer, read: Callable[[bytes], T], frame: bytes) -> T:
        """One step of the engine. When rows are missing every request may have a gap: better an error than a hang."""
        try:
            return read(frame)
        finally:
            if self._decoder.lost:
                self._touched = True
                self._role.log.warning("a frame of the engine is missing or cannot be read: its requests fail")
                core.fail_all("a part of the output was lost; send the request again")

    def _learn(self) -> None:
        facts = self._role.facts
        if facts is None or self._core is not None:
            return
        path = self._role.settings.tokenizer_path or facts.tokenizer_path or facts.model_path
        if self._tables is None:
            if path is None:
                raise SettingsError("no tokenizer: set tokenizer_path, or let the engine tell it in its launch facts")
            self._tables = load_tables(path)
        self._core = self._make(self._tables, facts)
        self._meet()
        self._role.ready(f"tokenizer of {path}")
        while self._early:
            try:
                self._work(self._core, *self._early.popleft())
            except PeerError as error:  # the others are still to be read
                self._role.bad_frames += 1
                self._role.log.warning("dropped a frame: %s", error)

    def _meet(self) -> None:
        """Tell the core which lives of the api processes are the present ones."""
        if self._core is not None:
            for peer in self._role.links.of_role("api"):
                hello = self._role.hellos.get(peer)
                if hello is not None:
                    self._core.lives.greeted(peer.number, hello.incarnation)

    def _make(self, tables: Tables, facts: LaunchFacts) -> Detokenizer:
        s, role = self._role.settings, self._role
        keep = facts.raw.get("keep_stop_token_ids") or []
        return Detokenizer(
            tables,
            epoch=role.incarnation,
            index=role.me.number,
            shards=s.detokenizers,
            max_states=s.max_states,
            open_wait=s.open_wait,
            front_stops=(facts.stop_match or s.stop_match) == "front",
            keep_stop_ids=[token for token in keep if isinstance(token, int)],
        )

    def peer_changed(self, peer: Peer, up: bool) -> None:
        """When an api process or the engine goes, its requests go: nobody reads or feeds them any more."""
        if up or self._core is None:
            return
        self._touched = True
        if peer.role == "api":
            hello = self._role.hellos.get(peer)
            anew = hello is not None and hello.incarnation != self._core.lives.present.get(peer.number)
            self._core.forget_api(peer.number, but=hello.incarnation if hello is not None and anew else None)
        elif peer == ENGINE:
            self._core.forget_all()

    def turn(self, now: float) -> float | None:
        """Send what the frames since the last turn have brought."""
        core = self._core
        if core is None:
            return None
        if now >= self._next_tick:
            self._next_tick = now + TICK
            core.tick(now)
            if now >= self._next_doubt:
                self._next_doubt = now + DOUBT * self._role.settings.open_wait
                self._ask_about(core)
        elif not self._touched:
            return TICK if core.waiting else None
        self._touched = False
        out = core.take()
        send, post = self._role.links.send, self._role.links.post
        for api, deltas in out.deltas:
            if not send(Peer("api", api), encode_deltas(deltas)):
                core.undelivered(api, deltas)
                self._touched = True
        if out.aborts:
            post(ENGINE, control.encode_aborts(out.aborts))
        if out.faults:
            faults: dict[int, list[RequestFault]] = defaultdict(list)
            for api, fault in out.faults:
                faults[api].append(fault)
            for api, items in faults.items():
                post(Peer("api", api), control.encode_faults(items))
        if self._touched:  # what could not be delivered has left errors to send
            return 0.0
        return TICK if core.waiting else None

    def _ask_about(self, core: Detokenizer) -> None:
        """Announced requests that have had no row for long: those that their api process does not have must go."""
        for api, rids in core.unheard().items():
            peer = Peer("api", api)
            if peer in self._role.links.links:
                self._role.links.send(peer, control.encode_unheard(Unheard(self._role.me.number, rids)))
            else:
                core.fail(rids, f"there is no {peer}")

    def idle(self) -> bool:
        """Whether no request is unfinished."""
        return self._core is None or not len(self._core)


def load_tables(path: str) -> Tables:
    """The id -> text tables of a model folder or a tokenizer.json; raises `SettingsError`."""
    file = Path(path)
    file = file / "tokenizer.json" if file.is_dir() else file
    try:
        tables = Tables(Tokenizer.from_file(str(file)))
    except Exception as error:  # the library raises bare Exception for a file that it cannot read
        raise SettingsError(f"the tokenizer {file} cannot be read: {error}") from error
    give_back()  # a table does not need the tokenizer that it was read from: 100 to 400 MiB
    return tables


def run(role: Role) -> None:
    """One detokenizer process, until the role stops."""
    role.serve_flow(DetokenizerService(role))
