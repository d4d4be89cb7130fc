"""Control calls that any process answers by itself: the level of its log lines, freezing its garbage collector."""

from __future__ import annotations

import gc
import logging
from typing import Any

from forebay.wire.messages import ControlRequest

HOUSEKEEPING = frozenset({"ConfigureLogging", "FreezeGc"})
LEVELS = ("debug", "info", "warning", "error")


YOUNG = 10_000
"""Containers that are made and not freed before the garbage collector looks at the young ones: more than a burst of 64
requests has in the air. A finished request leaves no garbage, so a look finds nothing (with 700, Python's number, the
looks take 10 us a request)."""


def settle_memory() -> None:
    """After the start of a process: what it is made of is never looked at again by the garbage collector.

    A full collection of an api process takes 4 ms, and 17 when its memory has left the processor's caches; the first
    bursts of requests would meet some.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 10, 10)


def keep_house(call: ControlRequest) -> dict[str, Any]:
    """Apply a call of `HOUSEKEEPING` to this process; the answer."""
    if call.type == "FreezeGc":
        gc.collect()
        gc.freeze()  # what lives now is never looked at again: long collections are shorter
        return {"success": True, "message": "Garbage collection frozen."}
    level = call.fields.get("log_level")
    if isinstance(level, str) and level.lower() in LEVELS:
        logging.getLogger().setLevel(level.upper())
    return {"success": True, "message": "Logging configured."}
