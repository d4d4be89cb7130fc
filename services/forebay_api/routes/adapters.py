"""LoRA adapters and sessions: typed control calls to engines that have them; refused by name where they have not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from forebay.redaction import without_secrets
from forebay_api import control_bodies as bodies
from forebay_api.controls import ask_engine, fields_of, message_of, refusal, succeeded
from forebay_api.http import Exchange
from forebay_api.routes.route import Handler, Route

if TYPE_CHECKING:
    from forebay_api.app import Api

NO_ADAPTERS = "LoRA is not enabled. Start the engine with LoRA."


def _adapter_call(type_: str, body: type[msgspec.Struct], sentence: str) -> Handler:
    async def handler(api: Api, http: Exchange) -> None:
        fields = await fields_of(api, http, body, large=True)
        if not api.admission().has_lora:
            answer = {"success": False, "message": NO_ADAPTERS}
        else:
            answer = await ask_engine(api, type_, fields)
        if succeeded(answer):
            await http.json(without_secrets(answer))
        else:
            await http.json({"error_message": message_of(answer, "refused"), **refusal(answer)}, 400)

    handler.__doc__ = sentence
    return handler


async def open_session(api: Api, http: Exchange) -> None:
    """Open a session; answers with its id. 400 when it is open already."""
    answer = await ask_engine(api, "OpenSession", await fields_of(api, http, bodies.OpenSessionBody))
    if succeeded(answer) and isinstance(answer.get("session_id"), str):
        await http.json(answer["session_id"])
    else:
        await http.json(refusal(answer), 400)


async def close_session(api: Api, http: Exchange) -> None:
    """Close a session."""
    answer = await ask_engine(api, "CloseSession", await fields_of(api, http, bodies.CloseSessionBody))
    if succeeded(answer):
        await http.raw(200, b"")
    else:
        await http.json(refusal(answer), 400)


def _adapter(path: str, type_: str, body: type[msgspec.Struct], summary: str) -> Route:
    return Route(("POST",), path, _adapter_call(type_, body, summary + "."), summary, "adapters", "admin", body=body)


_BOTH = ("GET", "POST")
ROUTES = [
    _adapter("/load_lora_adapter", "LoadLoraAdapter", bodies.LoadAdapterBody, "Load an adapter from a folder"),
    _adapter(
        "/load_lora_adapter_from_tensors",
        "LoadLoraAdapterFromTensors",
        bodies.LoadAdapterTensorsBody,
        "Load an adapter from the request",
    ),
    _adapter("/unload_lora_adapter", "UnloadLoraAdapter", bodies.UnloadAdapterBody, "Unload an adapter"),
    Route(_BOTH, "/open_session", open_session, "Open a session", "sessions", "admin", body=bodies.OpenSessionBody),
    Route(_BOTH, "/close_session", close_session, "Close a session", "sessions", "admin", body=bodies.CloseSessionBody),
]
