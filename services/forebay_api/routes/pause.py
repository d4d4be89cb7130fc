"""Pausing generation. The pause is held in the link to the engine, so that it is the same for every api process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_api.control_bodies import ContinueBody, PauseBody
from forebay_api.controls import ask_engine, fields_of, message_of, refusal, succeeded
from forebay_api.http import Exchange
from forebay_api.routes.route import Route

if TYPE_CHECKING:
    from forebay_api.app import Api


async def pause(api: Api, http: Exchange) -> None:
    """Hold new requests. Mode `abort` ends what runs and answers when the engine is empty; 504 when that takes too
    long: then new requests are held all the same until `/continue_generation`."""
    answer = await ask_engine(api, "PauseGeneration", await fields_of(api, http, PauseBody))
    await _tell(http, answer, "Generation paused successfully.")


async def resume(api: Api, http: Exchange) -> None:
    """Let the engine go on, then release the requests that were held."""
    answer = await ask_engine(api, "ContinueGeneration", await fields_of(api, http, ContinueBody))
    await _tell(http, answer, "Generation continued successfully.")


async def _tell(http: Exchange, answer: object, done: str) -> None:
    if succeeded(answer):
        await http.json({"message": message_of(answer, done), "status": "ok"})
    else:
        await http.json({**refusal(answer), "status": "error"}, 400)


ROUTES = [
    Route(("POST",), "/pause_generation", pause, "Pause generation", "control", "admin", body=PauseBody),
    Route(("POST",), "/continue_generation", resume, "Continue generation", "control", "admin", body=ContinueBody),
]
