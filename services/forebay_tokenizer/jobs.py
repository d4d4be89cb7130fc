"""What goes through the tokenizer and what comes out of it: a job with its outcome, and the result that leaves."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from forebay.errors import RequestError
from forebay.wire.messages import ControlRequest, Ids, RequestFault, WorkItem
from forebay_tokenizer.admission import Admission


class Refusal(NamedTuple):
    """A request ends here: one fault for each of its rids, for the api process that owns it."""

    api: int
    faults: list[RequestFault]


class Answer(NamedTuple):
    """The answer to a control call, for the api process that asked."""

    api: int
    rid: str
    payload: dict[str, Any]


Result = Admission | Refusal | Answer


@dataclass(slots=True, eq=False)
class Job:
    """One work item or control call on its way through; `outcome` is set by the thread that did it."""

    work: WorkItem | ControlRequest
    ids: Ids
    rids: list[str]
    cancelled: set[str] = field(default_factory=set)
    outcome: Admission | dict[str, Any] | RequestError | None = None
    came: float = field(default_factory=time.perf_counter)
    began: float = 0.0
    """When a thread took it; 0 if none did."""
    seconds: float = 0.0
    """Its share of the time of the batch that it was done in."""

    @property
    def api(self) -> int:
        return self.work.head.api if isinstance(self.work, WorkItem) else self.work.api


def result_of(job: Job) -> Result | None:
    """What leaves the process for a job; None when nobody waits for it any more."""
    live = [rid for rid in job.rids if rid not in job.cancelled]
    outcome = job.outcome
    if outcome is None or not live:
        return None
    if isinstance(outcome, RequestError):
        error = outcome
        return Refusal(
            job.api, [RequestFault(rid, error.status, error.message, error.type, error.param) for rid in live]
        )
    if isinstance(outcome, dict):
        return Answer(job.api, live[0], outcome)
    if not job.cancelled:
        return outcome
    return Admission(
        [item for item in outcome.opens if item.rid not in job.cancelled],
        [head for head in outcome.heads if head.rid not in job.cancelled],
        outcome.ids,
    )
