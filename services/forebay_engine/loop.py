"""The smallest use of `Front`: wait, drain, step, push. Any engine can be driven like this."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from forebay import AbortRequest, ControlRequest, Front, GenerateRequest, LinkError, RequestError
from forebay_engine.answers import answer
from forebay_engine.engine import Engine
from forebay_engine.link_meter import LinkMeter

IDLE_MS = 100
"""Longest sleep of an idle engine: how late it may notice that it shall stop."""

log = logging.getLogger(__name__)


def run(front: Front, engine: Engine, stopping: Callable[[], bool]) -> None:
    """Serve requests until `stopping()` says so or the front is closed."""
    link = LinkMeter(front)
    while not stopping():
        _wait(link, engine)
        for entry in link.drain():
            _take(link, engine, entry)
        batch = engine.step()
        if batch is not None and not link.push_generation(batch):
            return
        vectors = engine.embeddings()
        if vectors is not None and not link.push_embeddings(vectors):
            return


def _wait(front: LinkMeter, engine: Engine) -> None:
    """Sleep until something comes in or the next step is due."""
    patience = engine.patience()
    if patience is None:
        front.wait_ingress(IDLE_MS)
    elif patience > 0:
        whole = int(patience * 1000)
        if whole:
            front.wait_ingress(min(whole, IDLE_MS))
        else:
            time.sleep(patience)  # less than the millisecond that `wait_ingress` counts in


def _take(front: LinkMeter, engine: Engine, entry: Any) -> None:
    try:
        if isinstance(entry, GenerateRequest):
            engine.add(entry)
        elif isinstance(entry, AbortRequest):
            engine.abort(entry)
        elif isinstance(entry, ControlRequest):
            output = answer(engine, entry)
            if entry.type == "GetInternalState":
                output = {**output, "link_cpu_s": front.cpu_s}
            front.push_control_output(entry, output)
    except RequestError as error:
        _refuse(front, entry.rid, error)
    except LinkError as error:
        log.warning("an answer could not be sent: %s", error)


def _refuse(front: LinkMeter, rid: str, error: RequestError) -> None:
    try:
        front.push_error(rid, error.message, error.status, error.param)
    except LinkError as gone:
        log.warning("the refusal of %s could not be sent: %s", rid, gone)
