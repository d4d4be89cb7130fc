"""What the detokenizer has to send: frames for the api processes, aborts for the engine, errors."""

from __future__ import annotations

from dataclasses import dataclass, field

from forebay.wire.deltas import Deltas
from forebay.wire.messages import AbortRequest, End, Extra, RequestFault


@dataclass(slots=True)
class Mail:
    """Everything to send, in order."""

    deltas: list[tuple[int, Deltas]] = field(default_factory=list)
    """(api process, frame)"""
    aborts: list[AbortRequest] = field(default_factory=list)
    """For the engine."""
    faults: list[tuple[int, RequestFault]] = field(default_factory=list)
    """(api process, error)"""


def new_deltas(
    texts: list[str] | None = None,
    lens: list[int] | None = None,
    extras: list[tuple[int, Extra]] | None = None,
    ids: memoryview | bytes | None = None,
    starts: list[tuple[int, int, int]] | None = None,
) -> Deltas:
    """A frame that the outbox will number. `ids` None: no row wants ids."""
    return Deltas(
        source=0,
        epoch=0,
        seq=0,
        texts=texts,
        lens=lens,
        has_ids=ids is not None,
        extras=extras or [],
        ids=b"" if ids is None else ids,
        starts=starts or [],
    )


class Outbox:
    """Collects mail; numbers the frames of each api process and leaves out rows that it has in mind already."""

    def __init__(self, source: int, epoch: int) -> None:
        """`source`: number of the sending detokenizer; `epoch` names its life."""
        self._source, self._epoch = source, epoch
        self._mail = Mail()
        self._seqs: dict[int, int] = {}
        self._told: dict[int, list[str]] = {}
        self._ends: dict[int, list[End]] = {}
        self._steps: dict[int, int] = {}
        """By api process: the step up to which everything has been said."""
        self.step = 0
        """The engine's number of the step that is being served: everything up to it is said with the next frames."""
        self.muted: dict[int, int] = {}
        """Api processes that have had what is said now, and up to which step: only ends are for them."""

    def take(self) -> Mail:
        """What has come together since the last call. Ends that stand alone get their frames now."""
        for api in list(self._ends):
            self._put(api, new_deltas())
        mail, self._mail = self._mail, Mail()
        return mail

    def say(self, api: int, deltas: Deltas, rids: list[str]) -> None:
        """A frame whose rows are `rids`; the ends that wait for this api process go with it."""
        if api in self.muted:
            return
        told = self._told.get(api)
        if told is not rids and told != rids:
            deltas.rids = rids
        self._told[api] = rids
        self._put(api, deltas)

    def steady(self, api: int, rids: list[str]) -> tuple[int, int, int] | None:
        """Source, epoch and number of the last frame for an api process; None when texts of these rows alone cannot
        follow it."""
        if self._told.get(api) is not rids or self._mail.deltas or self._ends:
            return None
        if self._steps[api] != self.step:  # such a frame does not say which step it is of: the one after the last
            return None
        return self._source, self._epoch, self._seqs[api]

    def passed(self, api: int, frames: int) -> None:
        """Frames of texts that were numbered and sent by somebody else."""
        self._seqs[api] += frames
        self._steps[api] += frames

    def _put(self, api: int, deltas: Deltas) -> None:
        deltas.source, deltas.epoch = self._source, self._epoch
        deltas.seq = self._seqs[api] = self._seqs.get(api, 0) + 1
        deltas.ends = self._ends.pop(api, [])
        deltas.step = self._steps[api] = max(self.step, self.muted.get(api, 0))
        self._mail.deltas.append((api, deltas))

    def mark(self, api: int) -> None:
        """An empty frame: all up to the present step has been said."""
        self._put(api, new_deltas())

    def end(self, api: int, end: End) -> None:
        """The end of one request; it leaves with the next frame for its api process."""
        self._ends.setdefault(api, []).append(end)

    def abort(self, rid: str, reason: str, message: str = "Aborted") -> None:
        """Tell the engine to stop a request."""
        self._mail.aborts.append(AbortRequest(rid, reason, message))

    def fault(
        self, api: int, rid: str, status: int, message: str, param: str | None = None, type_: str | None = None
    ) -> None:
        """Answer a request with an error."""
        self._mail.faults.append((api, RequestFault(rid, status, message, type_, param)))

    def rows_of(self, api: int) -> list[str]:
        """The rows of the last frame for an api process."""
        return self._told.get(api, [])

    def forget_rows(self, api: int) -> None:
        """The next frame for this api process names its rows: a frame was not delivered, or the process is new."""
        self._told.pop(api, None)
