"""What the engines answer to control calls: the few that they can do, and a refusal by name for all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay import ControlRequest
from forebay.housekeeping import HOUSEKEEPING, keep_house
from forebay_engine.engine import Engine


def answer(engine: Engine, request: ControlRequest) -> dict[str, Any]:
    """The answer to a control request, as a map of field names; `success` False is a refusal."""
    if request.type in HOUSEKEEPING:
        return keep_house(request)
    act = _ANSWERS.get(request.type)
    if act is None:
        return {"success": False, "message": f"this engine does not support {request.type}"}
    return act(engine, request.fields)


def _flush(engine: Engine, fields: dict[str, Any]) -> dict[str, Any]:
    success, message = engine.flush()
    return {"success": success, "message": message}


def _state(engine: Engine, fields: dict[str, Any]) -> dict[str, Any]:
    return engine.state()


def _pause(engine: Engine, fields: dict[str, Any]) -> dict[str, Any]:
    engine.pause("retract" if fields.get("mode") == "retract" else "in_place")
    return {"success": True, "message": "Generation paused successfully."}


def _resume(engine: Engine, fields: dict[str, Any]) -> dict[str, Any]:
    engine.resume()
    return {"success": True, "message": "Generation continued successfully."}


def _name_weights(engine: Engine, fields: dict[str, Any]) -> dict[str, Any]:
    """The version is a name that the front keeps; the weights themselves stay."""
    version = fields.get("new_version")
    if not isinstance(version, str):
        return {"success": False, "message": "new_version must be a text"}
    return {"success": True, "message": f"Weight version updated to {version}.", "new_version": version}


_ANSWERS: dict[str, Callable[[Engine, dict[str, Any]], dict[str, Any]]] = {
    "FlushCache": _flush,
    "GetInternalState": _state,
    "PauseGeneration": _pause,
    "ContinueGeneration": _resume,
    "UpdateWeightVersion": _name_weights,
}
