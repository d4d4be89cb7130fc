"""The control calls of one api process that wait for an answer: each gets one, or an error, or is taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from forebay.errors import RequestError, WireError
from forebay.topology import Peer
from forebay.wire import control
from forebay.wire.messages import AbortRequest, ControlRequest


class Asks:
    """Opens no socket: `send` hands a frame to a peer, and says whether it could."""

    def __init__(self, number: int, send: Callable[[Peer, bytes], bool], loop: asyncio.AbstractEventLoop) -> None:
        self._number, self._send, self._loop = number, send, loop
        self._waiting: dict[str, tuple[Peer, asyncio.Future[Any]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(
        self, peer: Peer, type_: str, fields: dict[str, Any], rid: str, *, reachable: bool, exclusive: bool = False
    ) -> asyncio.Future[Any]:
        """Send a control call; the future gets the answer's payload, or a `RequestError` when the peer dies.
        Raises `RequestError` for fields that have no place on the wire.

        Cancelling the future takes the call back, so that it does not stand in the way of the next one.
        """
        try:
            frame = control.encode_control(ControlRequest(rid, self._number, type_, fields, exclusive))
        except WireError as error:
            raise RequestError(f"{type_}: a number is over 64 bits, or a value cannot be sent") from error
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[rid] = (peer, future)
        future.add_done_callback(lambda done: self._over(rid, peer, done.cancelled()))
        if not (reachable and self._send(peer, frame)):
            future.set_exception(RequestError(f"{peer.role} is not connected", 503))
        return future

    def _over(self, rid: str, peer: Peer, cancelled: bool) -> None:
        self._waiting.pop(rid, None)
        if cancelled:
            self._send(peer, control.encode_aborts([AbortRequest(rid, "client")]))

    def answer(self, rid: str, payload: Any) -> None:
        """Hand an answer, or the error in place of it, to who waits for it."""
        waiting = self._waiting.get(rid)
        if waiting is None or waiting[1].done():
            return
        if isinstance(payload, RequestError):
            waiting[1].set_exception(payload)
        else:
            waiting[1].set_result(payload)

    def lost(self, peer: Peer) -> None:
        """A process is gone: who waits for its answer is told."""
        for owner, future in list(self._waiting.values()):
            if owner == peer and not future.done():
                future.set_exception(RequestError(f"{peer} went away before it answered", 503))
