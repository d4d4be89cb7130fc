"""Control: abort requests, flush the engine's cache, look at its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.errors import RequestError
from forebay.facts import without_secrets
from forebay_api import schemas
from forebay_api.http import Exchange
from forebay_api.mailbox import ENGINE
from forebay_api.routes.route import Route

if TYPE_CHECKING:
    from forebay_api.app import Api

FLUSHED = "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the operation will not be performed.)\n"  # noqa: E501


async def abort_request(api: Api, http: Exchange) -> None:
    """End one request by its id, or all of them. Answers at once; the requests end through their own answers."""
    body = schemas.read_abort(await http.body(api.settings.max_body_bytes))
    if not body.rid and not body.abort_all:
        raise RequestError("provide either a nonempty rid or abort_all=true", param="rid")
    api.mailbox.abort(body.rid, everything=body.abort_all)
    await http.raw(200, b"")


async def flush_cache(api: Api, http: Exchange) -> None:
    """Drop the engine's cache; it refuses while requests are pending."""
    text = http.query().get("timeout", "0")
    try:
        wait = float(text)
    except ValueError:
        wait = -1.0
    if not 0 <= wait <= 86_400:
        raise RequestError(f"timeout must be a number of seconds from 0 to 86400, got {text[:40]}.", param="timeout")
    answer = await api.control(ENGINE, "FlushCache", {"timeout": wait}, api.settings.control_timeout + wait)
    if not succeeded(answer):
        await http.text(str(_message(answer) or "Flush cache failed.\n"), 400)
        return
    await http.text(FLUSHED)


async def internal_state(api: Api, http: Exchange) -> None:
    """The engine's live state, one map an engine link."""
    await http.json([without_secrets(await api.control(ENGINE, "GetInternalState", {}))])


def succeeded(answer: Any) -> bool:
    """The engine's own success flag decides."""
    return isinstance(answer, dict) and answer.get("success") is True


def _message(answer: Any) -> str | None:
    return answer.get("message") if isinstance(answer, dict) else None


ROUTES = [
    Route(("POST",), "/abort_request", abort_request, "Abort requests", "control", "admin", body=schemas.AbortBody),
    Route(("GET", "POST"), "/flush_cache", flush_cache, "Flush the engine's cache", "control", "admin"),
    Route(("GET",), "/get_internal_state", internal_state, "The engine's live state", "control", "admin"),
]
