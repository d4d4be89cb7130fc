"""Weights: typed control calls to the engine. While new weights are loaded, no request runs and new ones wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from forebay_api import control_bodies as bodies
from forebay_api.controls import ask_engine, call_handler, fields_of, refusal, succeeded
from forebay_api.http import Exchange
from forebay_api.routes.route import Route

if TYPE_CHECKING:
    from forebay_api.app import Api


def _versioned(fields: dict[str, Any], answer: Any) -> Any:
    """The engine's answer, with a word about the version that the front now tells."""
    version = fields.get("weight_version")
    if version is None:
        return answer
    text = f"{answer.get('message') or ''} Weight version updated to {version}.".strip()
    return {**answer, "message": text}


def _nothing(fields: dict[str, Any], answer: Any) -> None:
    return None


async def weights_by_name(api: Api, http: Exchange) -> None:
    """The values of one tensor, cut to `truncate_size`; 400 when the engine has none by that name."""
    answer = await ask_engine(api, "GetWeightsByName", await fields_of(api, http, bodies.WeightsByNameBody))
    value = answer.get("parameter") if succeeded(answer) else None
    if value is None:
        await http.json(refusal(answer), 400)
    else:
        await http.json(value)


def _update(path: str, type_: str, body: type[msgspec.Struct], summary: str) -> Route:
    sentence = "New weights. They are loaded while no request runs; new requests wait."
    handler = call_handler(type_, body, sentence, exclusive=True, large=True, done=_versioned)
    return Route(("POST",), path, handler, summary, "weights", "admin", body=body)


def _call(methods: tuple[str, ...], path: str, type_: str, body: type[msgspec.Struct], summary: str) -> Route:
    return Route(methods, path, call_handler(type_, body, summary + "."), summary, "weights", "admin", body=body)


def _memory(path: str, type_: str, summary: str) -> Route:
    handler = call_handler(type_, bodies.MemoryBody, summary + ".", exclusive=True, done=_nothing)
    return Route(("GET", "POST"), path, handler, summary, "weights", "admin", body=bodies.MemoryBody)


_POST, _BOTH = ("POST",), ("GET", "POST")
ROUTES = [
    _update("/update_weights_from_disk", "UpdateWeightsFromDisk", bodies.DiskWeightsBody, "Weights from a folder"),
    _update(
        "/update_weights_from_tensor", "UpdateWeightsFromTensor", bodies.TensorWeightsBody, "Weights from the request"
    ),
    _update(
        "/update_weights_from_distributed",
        "UpdateWeightsFromDistributed",
        bodies.DistributedWeightsBody,
        "Weights from a process group",
    ),
    _update("/update_weights_from_ipc", "UpdateWeightsFromIpc", bodies.IpcWeightsBody, "Weights from shared memory"),
    _update("/update_weight_version", "UpdateWeightVersion", bodies.VersionBody, "Name the weights"),
    _call(_POST, "/init_weights_update_group", "InitWeightsUpdateGroup", bodies.InitGroupBody, "Join a process group"),
    _call(_POST, "/destroy_weights_update_group", "DestroyWeightsUpdateGroup", bodies.GroupBody, "Leave the group"),
    _call(_POST, "/begin_weight_update", "BeginWeightUpdate", bodies.SelectorBody, "Begin an update in parts"),
    _call(_POST, "/end_weight_update", "EndWeightUpdate", bodies.SelectorBody, "End an update in parts"),
    _call(_BOTH, "/weights_checker", "CheckWeights", bodies.WeightsCheckBody, "Checksums of the weights"),
    Route(
        _BOTH,
        "/get_weights_by_name",
        weights_by_name,
        "Values of one tensor",
        "weights",
        "admin",
        body=bodies.WeightsByNameBody,
    ),
    _memory("/release_memory_occupation", "ReleaseMemoryOccupation", "Give memory back"),
    _memory("/resume_memory_occupation", "ResumeMemoryOccupation", "Take memory again"),
    _call(
        _POST,
        "/init_weights_send_group_for_remote_instance",
        "InitWeightsSendGroup",
        bodies.SendGroupBody,
        "Join a group to send weights",
    ),
    _call(_POST, "/send_weights_to_remote_instance", "SendWeights", bodies.SendBody, "Send weights"),
]
