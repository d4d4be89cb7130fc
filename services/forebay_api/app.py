"""The app of one api process: who may come in, which route answers, and what all routes share.

Requests of the routes in the table go straight to their handler, by one dict lookup; FastAPI has the same table for
its documentation, paths with parameters, and everything that is not found.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from forebay.errors import RequestError, SettingsError
from forebay.topology import Peer
from forebay_api.access import Keys, Origins, preflight
from forebay_api.calls import Call
from forebay_api.family import Family
from forebay_api.http import Bodies, ClientLeft, Exchange, Receive, Scope, Send
from forebay_api.mailbox import Mailbox
from forebay_api.metrics import LEFT, Metrics
from forebay_api.plan import AdmissionContext, Plan, fresh_id
from forebay_api.probe import Prober
from forebay_api.request_log import SILENT_TAGS, write_line
from forebay_api.routes import Route, all_routes

if TYPE_CHECKING:
    from forebay.role import Role

INTERNAL = "Internal server error"


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
        self.leaving = False
        """A stop has begun: not ready any more. The last requests may still be served."""
        self.draining = False
        """No new requests."""
        self.open_calls = 0
        self._context: AdmissionContext | None = None
        self._bodies = Bodies(role.settings.max_bodies_bytes)
        self.family = Family(role, mailbox)
        self._table: dict[tuple[str, str], Route] = {
            (method, route.path): route for route in all_routes() for method in route.methods if "{" not in route.path
        }
        self._pages: Any = None
        self._keys = Keys(self.settings.api_key, self.settings.admin_api_key)
        self._origins = Origins(self.settings.cors_origins)
        routes = all_routes()
        self._plain_paths = frozenset(route.path for route in routes if "{" not in route.path)
        self._prefixes = [(route.path.partition("{")[0], route.path) for route in routes if "{" in route.path]
        self.metrics = Metrics(role.counters, mailbox.pace, [route.path for route in routes])
        self._silent = frozenset(route.path for route in routes if route.tag in SILENT_TAGS)
        self._prober = Prober(mailbox, self.family.engine_steps)
        role.tally.show(lambda: len(mailbox), "api")

    # ---------------------------------------------------------------- what the routes ask
    def problem(self, *, unhealthy_counts: bool = True, pause_counts: bool = True) -> str | None:
        """Why requests are not welcome at the moment, or None."""
        if self.draining or self.leaving:
            return "server is shutting down"
        missing = self.mailbox.missing() or self.family.dead()
        if missing:
            return "engine is not connected" if "engine" in missing else f"{', '.join(missing)} is not running"
        if not self.warm:
            return "server is starting"
        if unhealthy_counts and not self.healthy:
            return "the engine did not answer the last health probe"
        if pause_counts and self.mailbox.paused:
            return "generation is paused"
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
        if len(self.mailbox) >= self.settings.max_inflight:
            # Before the body is read. `check_plan` counts what it holds.
            raise RequestError("too many requests in flight", 429, retry_after=1)

    def has_room(self, size: int) -> bool:
        """Whether a body of this size may be kept."""
        return self._bodies.held + size <= self._bodies.limit

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

    def new_rid(self, public: str | None) -> str:
        """A wire id that has never been used."""

        def fresh() -> str:
            made = fresh_id()
            return made if public is None else f"{public}.{made[:12]}"

        return self.mailbox.open_rid(fresh) if self.mailbox.shut_shards else fresh()

    def use_keys(self) -> None:
        """Take the keys of clients from the settings of now."""
        self.settings = self.role.settings
        self._keys = Keys(self.settings.api_key, self.settings.admin_api_key)

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

    async def control(self, peer: Peer, type_: str, fields: dict[str, Any], timeout: float | None = None) -> Any:
        """Ask a peer and wait for its answer; raises `RequestError` 504 when it takes too long, 503 when it is gone."""
        rid = f"control-{uuid.uuid4().hex}"
        future = self.mailbox.control(peer, type_, fields, rid)
        try:
            return await asyncio.wait_for(future, timeout or self.settings.control_timeout)
        except TimeoutError:
            raise RequestError(f"{peer.role} did not answer {type_} in time", 504) from None

    async def probe_engine(self, problem: Callable[[], str | None] = lambda: None) -> None:
        """Wait for a sign of life of the engine (`forebay_api.probe`). The caller sets the time limit."""
        await self._prober.run(problem)

    def call_began(self, http: Exchange, call: Call) -> None:
        """A call goes on its way: count it, and end it when its client's time limit is over."""
        seconds = http.time_limit()
        if http.call is not None:
            self.metrics.call_ended(http.call)
        http.call = call
        self.metrics.call_began(call)
        if seconds is not None:
            left = max(0.0, seconds - (time.perf_counter() - http.began))
            timer = asyncio.get_running_loop().call_later(left, self.mailbox.expire, call, seconds)
            call.done.add_done_callback(lambda _: timer.cancel())

    # ---------------------------------------------------------------- ASGI
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        http = Exchange(scope, receive, send, [])
        self.begin(http)
        await self.finish(http, self._route)

    def begin(self, http: Exchange) -> None:
        """An exchange begins: count it. Each that began goes through `over` once."""
        scope = http.scope
        http.bodies = self._bodies
        http.headers += self._origins.headers(http.header(b"origin"))
        http.openai = scope["path"].startswith("/v1/")
        http.way = self.metrics.came(self._endpoint(scope["path"]), scope["method"])
        self.open_calls += 1

    def over(self, http: Exchange) -> None:
        """An exchange has ended, in whatever way."""
        self.open_calls -= 1
        http.forget_body()
        if http.call is not None:
            if http.call.running:
                self.mailbox.abandon(http.call)  # its exchange broke off: nobody is left to hear of it
            self.metrics.call_ended(http.call)
        if http.way is not None:
            self.metrics.went(http.way, http.status)
        s = self.settings
        if s.log_requests and http.scope["path"] not in self._silent:
            write_line(http, time.perf_counter(), as_json=s.log_format == "json", with_text=s.log_request_text)
        http.close()

    async def finish(self, http: Exchange, work: Callable[[Exchange], Awaitable[None]]) -> None:
        """Let `work` answer; whatever happens, there is an answer, and the exchange is over."""
        try:
            await work(http)
        except ClientLeft:
            http.status = 408 if http.scope["extensions"]["forebay"]["connection"].timed_out else LEFT
        except Exception as error:
            await self._refuse(http, error)
        finally:
            self.over(http)

    async def _refuse(self, http: Exchange, error: Exception) -> None:
        # Not in the frame that has caught the error: it would be in a ring with it, and with it the body.
        answer = self.failure(http, error)
        if not http.answered:
            await http.error(answer, self.settings.error_format)

    def failure(self, http: Exchange, error: Exception) -> RequestError:
        """What the client is told of an error; what is our fault goes to the log. Its traceback is given up: a frame
        that has raised it from a variable would be in a ring with it, and with the frame the request's body."""
        answer = self._failure(http, error)
        link: BaseException | None = error
        while link is not None:
            link.__traceback__ = None
            link = link.__cause__ or link.__context__
        return answer

    def _failure(self, http: Exchange, error: Exception) -> RequestError:
        if isinstance(error, RequestError):
            return error
        if isinstance(error, SettingsError):
            # An engine that started anew brought facts that cannot be used.
            self.log.error("requests are refused: %s", error)
            return RequestError("the engine's sampling defaults cannot be used", 503)
        # The last line of defence: the client learns nothing of our insides, the log everything.
        self.log.error("%s %s failed", http.scope["method"], http.scope["path"], exc_info=error)
        return RequestError(INTERNAL, 500)

    async def _route(self, http: Exchange) -> None:
        scope = http.scope
        if scope["method"] == "OPTIONS":
            http.headers += preflight(http.header(b"access-control-request-headers"))
            await http.raw(200, b"")
            return
        route = self._table.get((scope["method"], scope["path"]))
        if route is None:
            self.authorize(http, "normal")
            scope["forebay"] = http  # a handler that FastAPI finds goes on with the same exchange
            await self._fastapi()(scope, http.receive, self._with_headers(http))
            return
        await self.run(route, http)

    async def run(self, route: Route, http: Exchange) -> None:
        """Let a route answer, if the caller may ask it."""
        http.openai = route.openai
        self.authorize(http, route.access)
        await route.handler(self, http)

    def _endpoint(self, path: str) -> str:
        """The path that stands in labels: of a route with a parameter its pattern."""
        if path in self._plain_paths:
            return path
        return next((pattern for prefix, pattern in self._prefixes if path.startswith(prefix)), path)

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
                http.status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), *http.headers]}
            await http.send(message)

        return send

    def authorize(self, http: Exchange, access: str) -> None:
        """Check the key of a request (`forebay_api.access`); raises `RequestError` 401 or 403."""
        self._keys.check(access, http.header(b"authorization"))
