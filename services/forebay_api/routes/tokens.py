"""`/tokenize` and `/detokenize`: answered by a tokenizer process, off the event loop that serves streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from forebay.errors import RequestError
from forebay_api import schemas
from forebay_api.http import Exchange
from forebay_api.routes.route import Route

if TYPE_CHECKING:
    from forebay_api.app import Api


async def tokenize(api: Api, http: Exchange) -> None:
    """Text or messages to token ids."""
    await _ask(api, http, "Tokenize", schemas.read_tokenize)


async def detokenize(api: Api, http: Exchange) -> None:
    """Token ids to text."""
    await _ask(api, http, "Detokenize", schemas.read_detokenize)


async def _ask(api: Api, http: Exchange, type_: str, read: Callable[[bytes], Any]) -> None:
    http.need_json()
    body = read(await http.body(api.settings.max_body_bytes))
    fields = {
        name: bytes(value) if isinstance(value, msgspec.Raw) else value
        for name in body.__struct_fields__
        if (value := getattr(body, name)) is not msgspec.UNSET
    }
    answer = await api.control(api.mailbox.tokenizer(), type_, fields)
    if isinstance(answer, dict) and "error" in answer:
        error = answer["error"]
        raise RequestError(error["message"], error["status"], param=error.get("param"))
    await http.json(answer)


ROUTES = [
    Route(("POST",), path, tokenize, "Text to token ids", "tokens", body=schemas.TokenizeBody)
    for path in ("/tokenize", "/v1/tokenize")
] + [
    Route(("POST",), path, detokenize, "Token ids to text", "tokens", body=schemas.DetokenizeBody)
    for path in ("/detokenize", "/v1/detokenize")
]
