"""How the link takes the requests of a dead detokenizer up again: it keeps their rows, and tells the next life of them.

    live -- connection lost --> away -- greeted by another life --> claims -- all api processes have claimed
      ^                                                                                        |
      +------------------------------- the last kept frame is sent ---------------- behind <---+

While a detokenizer is not `live`, its frames are only kept. A full queue makes it `behind`, too, without a new life.
Nothing here waits: each look at the links goes on where the last one stopped. What cannot be taken up again, because
its rows are not kept or nobody claims it in time, ends with an error at its client and an abort to the engine.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from forebay.errors import PeerError
from forebay.kept import Kept
from forebay.ledger import Ledger
from forebay.links import Links
from forebay.shards import ResumeLimits, Shard, State
from forebay.topology import Peer, shard_of
from forebay.wire.messages import Hello, RequestFault
from forebay.wire.replay import Claim, Replay, encode_replay

log = logging.getLogger("forebay.shim")

AT_ONCE = 256
"""Kept frames that are sent in one look: about half a millisecond."""
GRACE = 2.0
"""Seconds after a new life has caught up in which the link announces new requests to it, too: a tokenizer may have
sent the announcement of one of them to the life before."""


MOST = 2
"""How often a request is taken up again within `MINUTE` seconds: it may be what kills the detokenizers, and whoever
restarts them gives up after a few times."""
MINUTE = 60.0


class Resumption:
    """The detokenizers of one front, and what is kept for them."""

    def __init__(
        self,
        limits: ResumeLimits,
        links: Links,
        ledger: Ledger,
        fail: Callable[[Sequence[str], str], None],
        tell: Callable[[int, list[RequestFault]], bool],
    ) -> None:
        """`fail` ends live requests with an error, `tell` sends errors to an api process."""
        self._seconds = limits.seconds
        self._links, self._ledger = links, ledger
        self._fail, self._tell = fail, tell
        self.kept = Kept(limits.kept_bytes)
        self._shards = [Shard(peer) for peer in links.of_role("detokenizer")]
        self.direct = [shard.peer for shard in self._shards]
        """The detokenizers that get each step at once."""
        self.apart: list[Peer] = []
        """The others."""
        self.busy = False
        """Whether one of these is there, so that each look may bring it further."""
        self.seq = 0
        """The number of the last frame."""
        self.resumed = 0
        """Requests that were taken up again."""
        self._careful = False
        """Whether a detokenizer is not live, or has not been for long."""

    # ---------------------------------------------------------------- requests and frames
    def begin(self, rid: str, api: int, opens: bytes) -> None:
        """A request has come, with the announcements of its frame."""
        self.kept.begin(rid, (api, self.seq + 1, opens))
        if self._careful:
            self._announce(rid)

    def keep(self, frame: bytes, seq: int) -> None:
        """Keep a frame that is about to be sent."""
        self.seq = seq
        kept = self.kept
        if kept.records or self.apart:
            while not kept.add(frame, seq) and self._shrink():
                continue

    def refused(self, peer: Peer) -> bool:
        """A live detokenizer did not take the last frame; False when nothing was kept for it either."""
        records = self.kept.records
        if not any(rid in records for rid in self._ledger.of_shard(peer.number)):
            return False
        self._behind(self._shards[peer.number], self.seq, time.monotonic())
        return True

    def lost(self, peer: Peer) -> list[str]:
        """The live requests of a detokenizer of which nothing is kept."""
        return [rid for rid in self._ledger.of_shard(peer.number) if rid not in self.kept.records]

    # ---------------------------------------------------------------- what happens
    def changed(self, peer: Peer, up: bool, now: float) -> None:
        """The connection to a detokenizer came up or went down."""
        if not up:
            self._away(self._shards[peer.number], now)

    def greeted(self, hello: Hello, now: float) -> None:
        """A detokenizer has introduced itself."""
        shard = self._shard(hello.index)
        if hello.incarnation == shard.life:
            if shard.state is State.AWAY:  # it was frozen: what it has said since then is lost, and what it had is not
                self._give_up(shard, "was away")
                self._set(shard, State.LIVE, now)
            return
        if shard.state is not State.AWAY:
            self._away(shard, now)
        if shard.life is None:
            shard.old = frozenset()  # this engine has had no other: it may have started just now
        shard.life = hello.incarnation
        self._set(shard, State.CLAIMS, now)
        self._try(shard, now)

    def claimed(self, claim: Claim, now: float) -> None:
        """An api process says what it waits for."""
        shard = self._shard(claim.shard)
        if Peer("api", claim.api) not in self._links.links:
            raise PeerError(f"there is no api-{claim.api} in this front")
        shard.claims[claim.api] = claim
        if shard.state is State.CLAIMS:
            self._try(shard, now)
        elif claim.life == shard.life:
            self._answer(claim)
            if (claim.begun or claim.fresh) and shard.state is not State.AWAY:
                self._pass_on(shard, claim, now)

    def look(self, now: float) -> None:
        """Go on with all that is not done."""
        for shard in self._shards:
            late = now - shard.since > self._seconds
            waits = late and bool(self._ledger.of_shard(shard.peer.number))
            if shard.state is State.CLAIMS:
                # Those that have claimed wait for `seconds`, too: well before that they must hear of it.
                overdue, shard.overdue = shard.overdue, now - shard.since > self._seconds / 2
                self._try(shard, now, overdue)
            elif shard.state is State.BEHIND:
                if waits:
                    self._give_up(shard, "does not take what it is sent")
                self._advance(shard, now)
            elif shard.state is State.AWAY and waits and now - shard.since > 2 * self._seconds:
                self._give_up(shard, "is away")
            elif shard.grace and now > shard.grace:
                shard.grace = 0.0
        if self._careful:
            self._careful = bool(self.apart) or any(shard.grace for shard in self._shards)
        self.kept.look(now, any(self._is_awaited(shard, now) for shard in self._shards))

    # ---------------------------------------------------------------- steps of it
    def _is_awaited(self, shard: Shard, now: float) -> bool:
        """Whether what is kept may still be told to a detokenizer: not one that has been away for long."""
        return shard.state is not State.LIVE and now - shard.since <= 2 * self._seconds

    def _announce(self, rid: str) -> None:
        """A request has come whose detokenizer may not have been told of it in its present life."""
        shard = self._shards[shard_of(rid, len(self._shards))]
        if shard.state is State.BEHIND or (shard.state is State.LIVE and shard.grace):
            shard.opens.append(rid)
            if shard.state is State.LIVE:
                self._behind(shard, self.seq + 1, time.monotonic())

    def _shard(self, number: int) -> Shard:
        if not 0 <= number < len(self._shards):
            raise PeerError(f"there is no detokenizer-{number} in this front")
        return self._shards[number]

    def _mine(self, shard: Shard) -> list[str]:
        """The kept requests of a detokenizer, in their order."""
        number, count = shard.peer.number, len(self._shards)
        if count == 1:
            return list(self.kept.records)
        return [rid for rid in self.kept.records if shard_of(rid, count) == number]

    def _set(self, shard: Shard, state: State, now: float) -> None:
        shard.state, shard.since, shard.overdue = state, now, False
        self.busy = any(one.state in (State.CLAIMS, State.BEHIND) for one in self._shards)
        self._careful = True
        self.direct = [one.peer for one in self._shards if one.state is State.LIVE]
        self.apart = [one.peer for one in self._shards if one.state is not State.LIVE]

    def _away(self, shard: Shard, now: float) -> None:
        self._fail(self.lost(shard.peer), f"{shard.peer} is away")
        shard.old = frozenset(self._mine(shard))
        shard.pending.clear()
        shard.opens.clear()
        shard.replaying, shard.grace = False, 0.0
        self._set(shard, State.AWAY, now)

    def _try(self, shard: Shard, now: float, late: bool = False) -> None:
        """Begin, if every api process that has requests there has said which of them go on."""
        records = self.kept.records
        waited = {records[rid][0] for rid in shard.old if rid in records}
        if late or all(api in shard.claims and shard.claims[api].life == shard.life for api in waited):
            self._start(shard, now)

    def _start(self, shard: Shard, now: float) -> None:
        records = self.kept.records
        claims = [claim for claim in shard.claims.values() if claim.life == shard.life]
        shard.claims.clear()
        begun = {rid for claim in claims for rid in claim.begun}
        known = begun.union(*(claim.fresh for claim in claims))
        mine = self._mine(shard)
        gone = [rid for rid in mine if rid in shard.old and rid not in known]
        self._drop(gone, f"{shard.peer} is away")
        self._drop(self._tired(shard, now), f"{shard.peer} died again and again")
        for claim in claims:
            self._answer(claim)
        go = [rid for rid in mine if rid in records]
        replay = Replay(
            part="begin",
            rids=go,
            opens=self._opens(go),
            said={claim.api: claim.step for claim in claims},
            fresh=[rid for rid in go if rid not in begun],
        )
        resumed = shard.old.intersection(go)
        if resumed:
            log.info("%s goes on with %d requests", shard.peer, len(resumed))
            shard.told.append((now, resumed))
        self.resumed += len(resumed)
        shard.old = frozenset()
        shard.pending.append(encode_replay(replay))
        shard.replaying = True
        start = self.kept.start(records[go[0]][1]) if go else None
        self._behind(shard, self.seq + 1 if start is None else start, now)
        self._advance(shard, now)

    def _tired(self, shard: Shard, now: float) -> list[str]:
        """The requests that have been taken up again too often."""
        while shard.told and shard.told[0][0] < now - MINUTE:
            shard.told.popleft()
        records = self.kept.records
        if len(shard.told) < MOST:
            return []
        return [rid for rid in shard.old if rid in records and sum(rid in some for _, some in shard.told) >= MOST]

    def _answer(self, claim: Claim) -> None:
        """What an api process waits for in vain: its rows are not kept any more."""
        records, ledger = self.kept.records, self._ledger
        lost = [rid for rid in (*claim.begun, *claim.fresh) if rid not in records]
        self._fail([rid for rid in lost if rid in ledger], f"detokenizer-{claim.shard} was away")
        why = f"detokenizer-{claim.shard} was away; send the request again"
        over = [RequestFault(rid, 503, why, "unavailable_error") for rid in lost if ledger.ended(rid)]
        if over:
            self._tell(claim.api, over)

    def _pass_on(self, shard: Shard, claim: Claim, now: float) -> None:
        """A claim has come when the replay had begun, as nothing that is kept was of that api process: let the
        detokenizer tell it that it is there."""
        shard.pending.append(encode_replay(Replay(part="more", said={claim.api: claim.step})))
        if shard.state is State.LIVE:
            self._behind(shard, self.seq + 1, now)
        self._advance(shard, now)

    def _opens(self, rids: Iterable[str]) -> list[bytes]:
        records = self.kept.records
        return list({id(opens): opens for _, _, opens in map(records.__getitem__, rids)}.values())

    def _behind(self, shard: Shard, cursor: int, now: float) -> None:
        shard.cursor = cursor
        self._set(shard, State.BEHIND, now)

    def _advance(self, shard: Shard, now: float) -> None:
        """Send what is due, as far as the queue takes it; live again behind the last frame."""
        if shard.opens:
            opens = [rid for rid in shard.opens if rid in self.kept.records]
            shard.pending.append(encode_replay(Replay(part="more", rids=opens, opens=self._opens(opens))))
            shard.opens.clear()
        while shard.pending:
            if not self._links.has_greeted(shard.peer):  # the link may take frames already
                return
            if not self._links.send(shard.peer, shard.pending[0]):
                return
            shard.pending.popleft()
            shard.since = now
        shard.cursor = max(shard.cursor, self.kept.first) if len(self.kept) else self.seq + 1
        for frame in self.kept.since(shard.cursor, AT_ONCE):
            if not self._links.send(shard.peer, frame):
                return
            shard.cursor += 1
            shard.since = now
        if shard.cursor <= self.seq:
            return
        if shard.replaying:
            if not self._links.send(shard.peer, encode_replay(Replay(part="end"))):
                return
            shard.replaying = False
            shard.grace = now + GRACE
        self._set(shard, State.LIVE, now)

    def _shrink(self) -> bool:
        """Too much is kept: the oldest requests cannot be taken up again; those that wait for it end now. False when
        nothing is kept any more: the frame is larger than all that may be kept."""
        shrunk = len(self.kept) > 0
        gone = self.kept.shrink() if shrunk else list(self.kept.records)
        self.kept.forget(gone)
        log.debug("%d requests are too long to be taken up again", len(gone))
        for shard in self._shards:
            if shard.state is not State.LIVE:
                number, count = shard.peer.number, len(self._shards)
                mine = [rid for rid in gone if shard_of(rid, count) == number]
                self._fail(mine, f"{shard.peer} is away for too many steps")
        return shrunk

    def _drop(self, rids: Sequence[str], why: str) -> None:
        """Requests end with an error at their client, those that are in the engine also there."""
        records, ledger = self.kept.records, self._ledger
        over: dict[int, list[RequestFault]] = {}
        for rid in rids:
            if rid not in ledger:
                fault = RequestFault(rid, 503, f"{why}; send the request again", "unavailable_error")
                over.setdefault(records[rid][0], []).append(fault)
        self._fail([rid for rid in rids if rid in ledger], why)
        for api, faults in over.items():
            self._tell(api, faults)
        self.kept.forget(rids)

    def _give_up(self, shard: Shard, why: str) -> None:
        """Nothing of a detokenizer's present requests goes on."""
        why = f"{shard.peer} {why}"
        self._drop(self._mine(shard), why)
        self._fail(self.lost(shard.peer), why)
        shard.cursor = self.seq + 1
