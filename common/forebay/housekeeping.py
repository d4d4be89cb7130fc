"""Control calls that any process answers by itself: the level of its log lines, freezing its garbage collector."""

from __future__ import annotations

import gc
import logging
from typing import Any

from forebay.wire.messages import ControlRequest

HOUSEKEEPING = frozenset({"ConfigureLogging", "FreezeGc"})
LEVELS = ("debug", "info", "warning", "error")


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
