"""What a detokenizer that has started anew does with the steps that the link tells it again.

They go the way of all steps. What they say is dropped for an api process until the step is reached up to which it has
had everything; ends are always said, since an api process claims no request that has had its end.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from forebay.wire.messages import OpenItem
from forebay.wire.replay import Replay, pick_opens
from forebay_detokenizer.requests import Requests

ONCE = 10.0
"""Seconds after a replay in which a request may be announced twice: by the link, and late by a tokenizer. Also those
after its beginning in which its end must come, unless an api process has still to be reached: else it was damaged."""


class Resuming(Requests):
    """The requests of one shard, with those of the life before it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.replaying = False
        self._late: defaultdict[int, list[OpenItem]] = defaultdict(list)
        """By api process: streams of which nothing has been said. Their rows wait while those of others are muted."""
        self._apis: set[int] = set()
        self._once_until = 0.0

    def begin_replay(self, replay: Replay, now: float) -> None:
        """The requests that go on here; their steps follow. Raises `PeerError` for one that cannot be read."""
        items = pick_opens(replay.opens, replay.rids)
        fresh = set(replay.fresh)
        self.replaying = self.once = True
        self.expects = set()
        self._stale = True
        self._out.muted = {api: step for api, step in replay.said.items() if step > 0}
        self._apis = {*replay.said, *(item.api for item in items)}
        self._late.clear()
        self._once_until = now + ONCE
        now_open = []
        for item in items:
            if item.stream and item.rid in fresh and item.api in self._out.muted:
                self._late[item.api].append(item)
                self.expects.add(item.rid)
            else:
                now_open.append(item)
        self.open(now_open, now)
        for api in sorted(replay.said):
            self._out.mark(api)  # so that it waits on, however long the replay takes

    def more(self, replay: Replay, now: float) -> None:
        """Requests that have come since the replay began, whose first rows follow, and api processes that have claimed
        since. Raises `PeerError`."""
        self.open(pick_opens(replay.opens, replay.rids), now)
        for api in sorted(replay.said):
            self._out.mark(api)

    def reach(self, seq: int, now: float) -> None:
        """A step of the replay is about to be served: who has not had it gets it."""
        for api, step in list(self._out.muted.items()):
            if seq > step:
                self._unmute(api, now)

    def end_replay(self, now: float) -> None:
        """The steps that follow come for the first time. Each api process hears that all has been said."""
        for api in list(self._out.muted):
            self._unmute(api, now)
        for api in sorted(self._apis):
            self._out.mark(api)
        self._over()
        self._once_until = now + ONCE

    def _unmute(self, api: int, now: float) -> None:
        del self._out.muted[api]
        self.open(self._late.pop(api, []), now)

    def _over(self) -> None:
        self.replaying, self.expects = False, None
        self._stale = True
        self._out.muted = {}
        self._late.clear()

    def forget_all(self) -> None:
        super().forget_all()
        self._over()

    def tick(self, now: float) -> None:
        super().tick(now)
        if not self.once or now <= self._once_until:
            return
        if not self.replaying:
            self.once = False
        elif not self._out.muted:
            self.end_replay(now)
