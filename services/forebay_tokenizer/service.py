"""The tokenizer process: frames in, `Tokenizer` in the middle, frames out. No rule about text stands here."""

from __future__ import annotations

import time
from collections import defaultdict, deque

from forebay.errors import PeerError, SettingsError
from forebay.facts import LaunchFacts
from forebay.metric_table import WORK
from forebay.role import Role
from forebay.topology import Peer, shard_of
from forebay.wire import control, ingress
from forebay.wire.frames import Kind
from forebay.wire.messages import AbortRequest, Admitted, Ids, OpenItem, RequestFault, RequestHead, WorkItem
from forebay_tokenizer.admission import Admission
from forebay_tokenizer.worker import Answer, Refusal, Result, Tokenizer

ENGINE = Peer("engine", 0)
STOP_SECONDS = 5.0
HELD_LOOK = 0.05
"""Seconds between looks at requests whose detokenizer is not linked yet."""


class TokenizerService:
    """Drives one `Tokenizer` for `Role.serve`. Until the tokenizer is loaded, work waits."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._tokenizer: Tokenizer | None = None
        self._facts: LaunchFacts | None = None
        self._held: list[tuple[float, Result]] = []
        """Requests that wait for the link to their detokenizer, and until when: this process, or that one, is new."""
        self._come: list[tuple[WorkItem, Ids]] = []
        """Work of the frames of this turn."""
        self._early: deque[tuple[Kind, bytes]] = deque()
        self._early_bytes = 0
        self._tokenize_seconds = role.counters.histogram("tokenize_seconds", WORK)
        self._wait_seconds = role.counters.histogram("ingress_wait_seconds", WORK)
        role.tally.show(self._waiting, "tokenizer")
        if role.settings.tokenizer_path is not None:
            self._load(role.settings.tokenizer_path, None)

    # ---------------------------------------------------------------- frames in
    def handle(self, kind: Kind, frame: bytes) -> None:
        """One frame. Everything but a greeting waits until the tokenizer is loaded."""
        if kind is Kind.HELLO:
            self._learn()
        elif kind not in (Kind.WORK, Kind.CONTROL, Kind.ABORT):
            raise PeerError(f"a {kind.name} frame has no business in a tokenizer")
        elif self._tokenizer is None:
            s = self._role.settings
            if len(self._early) < s.max_tokenizer_queue and self._early_bytes < s.max_link_bytes:
                self._early.append((kind, frame))
                self._early_bytes += len(frame)
            else:
                self._refuse(kind, frame)
        else:
            self._work(self._tokenizer, kind, frame)

    def _work(self, tokenizer: Tokenizer, kind: Kind, frame: bytes) -> None:
        if kind is Kind.WORK:
            self._come += ingress.decode_work(frame)
            return
        self._submit(tokenizer)  # an abort may be for what has come before it
        if kind is Kind.CONTROL:
            tokenizer.call(control.decode_control(frame))
        else:
            for abort in control.decode_aborts(frame):
                tokenizer.cancel(abort.rid)
                if self._held:
                    self._let_go(abort.rid)

    def _submit(self, tokenizer: Tokenizer) -> None:
        """Hand over what has come in this turn, as one lot."""
        if self._come:
            come, self._come = self._come, []
            tokenizer.submit_many(come)

    def _refuse(self, kind: Kind, frame: bytes) -> None:
        """No room for work before the tokenizer is loaded: its owner hears of it."""
        why = "the tokenizer is starting and its queue is full; send the request again"
        faults: list[tuple[int, RequestFault]] = []
        if kind is Kind.WORK:
            for item, _ in ingress.decode_work(frame):
                faults += [(item.head.api, RequestFault(rid, 503, why)) for rid in item.rids]
        elif kind is Kind.CONTROL:
            call = control.decode_control(frame)
            faults.append((call.api, RequestFault(call.rid, 503, why)))
        for api, fault in faults:
            self._role.links.post(Peer("api", api), control.encode_faults([fault]))

    def _learn(self) -> None:
        facts = self._role.facts
        if facts is None or facts is self._facts:
            return
        self._facts = facts
        if self._tokenizer is not None:
            self._tokenizer.learn(self._role.settings, facts)
            return
        path = facts.tokenizer_path or facts.model_path
        if path is None:
            raise SettingsError("no tokenizer: set tokenizer_path, or let the engine tell it in its launch facts")
        self._load(path, facts)

    def _load(self, path: str, facts: LaunchFacts | None) -> None:
        role = self._role
        tokenizer = Tokenizer.load(path, role.settings, facts, log=role.log, wake=role.wake)
        tokenizer.start()
        self._tokenizer = tokenizer
        role.ready(f"tokenizer of {path}")
        while self._early:
            self._work(tokenizer, *self._early.popleft())

    def _waiting(self) -> int:
        return len(self._early) if self._tokenizer is None else self._tokenizer.waiting()

    def _measure(self, tokenizer: Tokenizer) -> None:
        for waited, took in tokenizer.timings:
            self._wait_seconds.observe(waited)
            self._tokenize_seconds.observe(took)
        tokenizer.timings.clear()

    def peer_changed(self, peer: Peer, up: bool) -> None:
        """Nothing is kept for a peer: what a dead one had is sent again by the api process, or fails there."""

    # ---------------------------------------------------------------- results out
    def turn(self, now: float) -> float | None:
        """Send all results that have come since the last turn, in as few frames as there are receivers."""
        tokenizer = self._tokenizer
        if tokenizer is None:
            return None
        self._submit(tokenizer)
        results = tokenizer.results()
        if not (results or self._held or tokenizer.timings):
            return None
        admissions: list[tuple[float, Admission]] = []
        faults: dict[int, list[RequestFault]] = defaultdict(list)
        admitted: dict[int, list[Admitted]] = defaultdict(list)
        held, self._held = self._held, []
        for until, result in (*held, *((now + self._role.settings.open_wait, r) for r in results)):
            if isinstance(result, Admission):
                if now < until and not self._can_open(result):
                    self._held.append((until, result))
                    continue
                admissions.append((until, result))
                admitted[result.opens[0].api] += result.admitted(tokenizer.text_of)
            elif isinstance(result, Refusal):
                faults[result.api] += result.faults
            elif isinstance(result, Answer):
                self._role.links.post(Peer("api", result.api), control.encode_reply(result.rid, result.payload))
        for api, items in admitted.items():
            # Before the engine hears of the request: its first output must find the prompt at the api.
            if items:
                self._role.links.post(Peer("api", api), control.encode_admitted(items))
        self._measure(tokenizer)
        self._admit(admissions, now, faults)
        for api, found in faults.items():
            self._role.links.post(Peer("api", api), control.encode_faults(found))
        return HELD_LOOK if self._held else None

    def _can_open(self, admission: Admission) -> bool:
        return all(self._role.links.is_up(self._shard(item.rid)) for item in admission.opens)

    def _let_go(self, rid: str) -> None:
        """A request that has ended meanwhile is not held any longer."""
        self._held = [
            (until, Admission([o for o in one.opens if o.rid != rid], [h for h in one.heads if h.rid != rid], one.ids))
            for until, one in self._held
            if isinstance(one, Admission) and any(item.rid != rid for item in one.opens)
        ]

    def _admit(
        self, admissions: list[tuple[float, Admission]], now: float, faults: dict[int, list[RequestFault]]
    ) -> None:
        """Open the requests at their detokenizers, then admit them at the engine; who cannot be reached in time fails
        them. A detokenizer is told twice of a request of which another one has not taken the announcement yet."""
        away = self._open([item for _, one in admissions for item in one.opens])
        heads: list[RequestHead] = []
        ids: list[Ids] = []
        opens: list[OpenItem] = []
        for until, one in admissions:
            peers = {self._shard(item.rid) for item in one.opens} & away
            if peers and now < until:
                self._held.append((until, one))
                continue
            for head, item in zip(one.heads, one.opens, strict=True):
                if (peer := self._shard(head.rid)) in peers:
                    why = f"{self._refusal(peer)}; send the request again"
                    faults[head.api].append(RequestFault(head.rid, 503, why))
                else:
                    heads.append(head)
                    ids.append(one.ids)
                    opens.append(item)
        if not heads or self._role.links.send(ENGINE, ingress.encode_admit(heads, ids, opens)):
            return
        why = self._refusal(ENGINE)
        for head in heads:
            faults[head.api].append(RequestFault(head.rid, 503, why))
            frame = control.encode_aborts([AbortRequest(head.rid, "lost")])
            self._role.links.post(self._shard(head.rid), frame)

    def _refusal(self, peer: Peer) -> str:
        if self._role.links.is_up(peer):
            return f"{peer} does not take what it is sent"
        return "engine is not connected" if peer == ENGINE else f"{peer} is not running"

    def _open(self, items: list[OpenItem]) -> set[Peer]:
        """Announce requests to their detokenizers; those that do not take it."""
        opens: dict[Peer, list[OpenItem]] = defaultdict(list)
        for item in items:
            opens[self._shard(item.rid)].append(item)
        return {peer for peer, some in opens.items() if not self._role.links.send(peer, control.encode_opens(some))}

    def idle(self) -> bool:
        """Whether no work is left."""
        return self._tokenizer is None or not (self._held or self._tokenizer.busy)

    def _shard(self, rid: str) -> Peer:
        return Peer("detokenizer", shard_of(rid, self._role.settings.detokenizers))

    def stop(self) -> None:
        """Finish what waits, and send it."""
        if self._tokenizer is not None:
            self._tokenizer.stop(STOP_SECONDS)
            self.turn(time.monotonic())


def run(role: Role) -> None:
    """One tokenizer process, until the role stops."""
    service = TokenizerService(role)
    try:
        role.serve(service)
    finally:
        service.stop()
