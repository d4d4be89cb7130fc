"""The app of one api process: who may come in, which route answers, and what all routes share.

Requests of the routes in the table go straight to their handler, by one dict lookup; FastAPI has the same table for
its documentation, paths with parameters, and everything that is not found.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import time
import uuid
from typing import TYPE_CHECKING, Any

from forebay._version import __version__
from forebay.errors import RequestError, SettingsError
from forebay.topology import Peer
from forebay.wire.messages import OpenItem, WorkItem
from forebay_api.calls import Call, Choice
from forebay_api.http import ClientLeft, Exchange, Receive, Scope, Send
from forebay_api.mailbox import Mailbox
from forebay_api.plan import AdmissionContext, Plan
from forebay_api.probe import probe_head, probe_rid
from forebay_api.routes import Route, all_routes

if TYPE_CHECKING:
    from forebay.role import Role

INTERNAL = "Internal server error"
PROBE_PAUSE = 0.05
"""Seconds between two health probes when the first was refused on its way."""


class Api:
    """The ASGI application, and what the routes ask it for."""

    def __init__(self, role: Role, mailbox: Mailbox) -> None:
        self.role = role
        self.settings = role.settings
        self.mailbox = mailbox
        self.log = logging.getLogger("forebay.api")
        self.started = int(time.time())
        self.warm = False
        self.healthy = True
        self.draining = False
        self.open_calls = 0
        self._context: AdmissionContext | None = None
        self._serial = 0
        self._expected = role.topology.peers(role.me)
        self._table: dict[tuple[str, str], Route] = {
            (method, route.path): route for route in all_routes() for method in route.methods if "{" not in route.path
        }
        self._pages: Any = None

    # ---------------------------------------------------------------- what the routes ask
    def problem(self, *, unhealthy_counts: bool = True) -> str | None:
        """Why requests are not welcome at the moment, or None."""
        if self.draining:
            return "server is shutting down"
        missing = self.mailbox.missing() or self.mailbox.dead(self._expected)
        if missing:
            return "engine is not connected" if "engine" in missing else f"{', '.join(missing)} is not running"
        if not self.warm:
            return "server is starting"
        if unhealthy_counts and not self.healthy:
            return "the engine did not answer the last health probe"
        return None

    def accepting(self) -> None:
        """Refuse generation that cannot be served now (503). A role that is being restarted does not count: its
        requests wait for it."""
        if self.draining:
            raise RequestError("server is shutting down", 503)
        if not self.mailbox.engine_up:
            raise RequestError("engine is not connected", 503)
        if not self.warm:
            raise RequestError("server is starting", 503)

    def check_plan(self, plan: Plan) -> None:
        """Limits of this process, and request ids that run already."""
        count = sum(len(item.rids) for item in plan.items)
        if len(self.mailbox) + count > self.settings.max_inflight:
            raise RequestError("too many requests in flight", 429, retry_after=1)
        for public in plan.public_rids:
            if public is not None and self.mailbox.owns(public):
                raise RequestError(f"Duplicate request ID detected: {public}", param="rid")

    def admission(self) -> AdmissionContext:
        """What the reading of a body needs to know; made anew when the engine has told new facts.

        Raises `SettingsError` for sampling defaults that cannot be used.
        """
        facts = self.mailbox.facts
        context = self._context
        if context is None or context.facts is not facts:
            context = self._context = AdmissionContext(self.settings, facts, self.new_rid, self.role.me.number)
        return context

    def new_rid(self, public: str | None) -> tuple[str, int]:
        """A wire id that has never been used, and the serial number of the request."""
        self._serial += 1
        fresh = uuid.uuid4().hex
        return (fresh if public is None else f"{public}.{fresh[:12]}"), self._serial

    def model_name(self) -> str:
        """The name under which the model is served."""
        facts = self.mailbox.facts
        name = self.settings.served_model_name
        if name is None and facts is not None:
            name = facts.served_model_name or facts.model_path
        return name or "default"

    def context_length(self) -> int | None:
        """Tokens that prompt and answer may have together."""
        facts = self.mailbox.facts
        return self.settings.context_length or (facts.context_length if facts is not None else None)

    def processes(self) -> list[dict[str, Any]]:
        """Every process of the front as it introduced itself."""
        others = [
            {"name": str(peer), "pid": hello.pid, "cores": hello.cores, "version": hello.version}
            for peer, hello in sorted(self.mailbox.hellos.items())
        ]
        me = {"name": str(self.role.me), "pid": os.getpid(), "cores": list(self.role.cores), "version": __version__}
        return [me, *others]

    async def control(self, peer: Peer, type_: str, fields: dict[str, Any], timeout: float | None = None) -> Any:
        """Ask a peer and wait for its answer; raises `RequestError` 504 when it takes too long, 503 when it is gone."""
        rid = f"control-{uuid.uuid4().hex}"
        future = self.mailbox.control(peer, type_, fields, rid)
        try:
            return await asyncio.wait_for(future, timeout or self.settings.control_timeout)
        except TimeoutError:
            raise RequestError(f"{peer.role} did not answer {type_} in time", 504) from None

    async def probe_engine(self) -> None:
        """Send one-token requests until there is a sign of life of the engine. The caller sets the time limit."""
        while not await self._probe_once():
            # Refused on the way: two processes that both are up may not have found each other yet.
            await asyncio.sleep(PROBE_PAUSE)

    async def _probe_once(self) -> bool:
        heard = self.mailbox.probe()
        rid = probe_rid()
        plan = Plan.probe()
        call = Call(plan, asyncio.get_running_loop(), rid)
        item = WorkItem(
            head=probe_head(rid), rids=[rid], serials=[0], open=OpenItem(rid=rid, api=self.role.me.number), has_ids=True
        )
        item.head.api = self.role.me.number
        plan.items.append(item)
        self.mailbox.submit(call, [Choice(call, rid, 0, item, 0)], plan.ids)
        try:
            await asyncio.wait({heard, call.done}, return_when=asyncio.FIRST_COMPLETED)
            return heard.done()
        finally:
            heard.cancel()
            self.mailbox.abandon(call)

    # ---------------------------------------------------------------- ASGI
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        http = Exchange(scope, receive, send, self._cors(scope))
        http.openai = scope["path"].startswith("/v1/")
        self.open_calls += 1
        try:
            await self._route(http)
        except RequestError as error:
            await http.error(error, self.settings.error_format)
        except ClientLeft:
            return
        except SettingsError as error:
            # An engine that started anew brought facts that cannot be used.
            self.log.error("requests are refused: %s", error)
            await http.error(
                RequestError("the engine's sampling defaults cannot be used", 503), self.settings.error_format
            )
        except Exception:
            # The last line of defence: the client learns nothing of our insides, the log everything.
            self.log.exception("%s %s failed", scope["method"], scope["path"])
            if not http.answered:
                await http.error(RequestError(INTERNAL, 500), self.settings.error_format)
        finally:
            self.open_calls -= 1

    async def _route(self, http: Exchange) -> None:
        scope = http.scope
        if scope["method"] == "OPTIONS":
            http.headers += [
                (b"access-control-allow-methods", b"*"),
                (b"access-control-allow-headers", http.header(b"access-control-request-headers") or b"*"),
                (b"access-control-max-age", b"600"),
            ]
            await http.raw(200, b"")
            return
        route = self._table.get((scope["method"], scope["path"]))
        if route is None:
            self.authorize(http, "normal")
            await self._fastapi()(scope, http.receive, self._with_headers(http))
            return
        await self.run(route, http)

    async def run(self, route: Route, http: Exchange) -> None:
        """Let a route answer, if the caller may ask it."""
        http.openai = route.openai
        self.authorize(http, route.access)
        await route.handler(self, http)

    def _fastapi(self) -> Any:
        if self._pages is None:
            from forebay_api.pages import build_pages

            self._pages = build_pages(self)
        return self._pages

    @staticmethod
    def _with_headers(http: Exchange) -> Send:
        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                http.answered = True
                message = {**message, "headers": [*message.get("headers", []), *http.headers]}
            await http.send(message)

        return send

    def _cors(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        allowed = [origin.strip().encode() for origin in self.settings.cors_origins.split(",") if origin.strip()]
        origin = next((value for name, value in scope["headers"] if name == b"origin"), None)
        if origin is None or not allowed:
            return []
        if b"*" in allowed:
            return [(b"access-control-allow-origin", b"*")]
        return [(b"access-control-allow-origin", origin), (b"vary", b"origin")] if origin in allowed else []

    def authorize(self, http: Exchange, access: str) -> None:
        """Check the bearer key of a request (spec: native API 1.2); raises `RequestError` 401."""
        if access == "open":
            return
        key, admin = self.settings.api_key, self.settings.admin_api_key
        accepted: tuple[str | None, ...] = (admin or key,) if access == "admin" else (key, admin) if key else ()
        wanted = [value.encode() for value in accepted if value]
        if not wanted:
            return
        word, _, given = (http.header(b"authorization") or b"").partition(b" ")
        matches = [hmac.compare_digest(given.strip(), value) for value in wanted]
        if word.lower() != b"bearer" or not any(matches):
            raise RequestError("Unauthorized", 401)
