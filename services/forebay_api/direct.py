"""Generation requests that have come whole, with one read: answered without an ASGI task or a coroutine.

What happens is what `routes.generation` says, step by step; only who waits is another: no task sleeps until the call
is done, its end calls back. Most requests come this way. What does not (a body in several reads, a compressed one, a
prompt that is to go ahead of its samples, a client that wants to hear 100 first) goes through the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from forebay_api import replies
from forebay_api.calls import Call, Choice, as_error
from forebay_api.http import JSON, ClientLeft, Exchange
from forebay_api.metrics import LEFT
from forebay_api.plan import Plan
from forebay_api.routes import generation
from forebay_api.routes.generation import KINDS, STREAMS, Kind, plan_of, respond, warms, welcome, whole_fault
from forebay_api.server import EventWriter, ResponseOwner, write_answer
from forebay_api.streams import StreamCall

if TYPE_CHECKING:
    from forebay_api.app import Api
    from forebay_api.routes import Route


class Direct:
    """Takes such requests of one api process."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._tasks: set[asyncio.Task[None]] = set()
        """The few requests that wait for something; a loop keeps its tasks only while somebody else does."""
        self._kinds: dict[tuple[str, str], tuple[Route, Kind]] = {
            (method, route.path): (route, KINDS[route.path]) for route in generation.ROUTES for method in route.methods
        }

    def take(self, cycle: RequestResponseCycle) -> bool:
        """Begin to answer a request whose body is complete; False when it is none of ours."""
        scope, api = cycle.scope, self._api
        found = self._kinds.get((scope["method"], scope["path"]))
        if found is None or cycle.waiting_for_100_continue or cycle.disconnected or cycle.response_complete:
            return False
        http = Exchange(scope, cycle.receive, cycle.send, [])
        size = len(cycle.body)
        if size > api.settings.max_body_bytes or not api.has_room(size) or b"x-body-compressed" in http.fields:
            return False
        api.begin(http)
        try:
            self._run(http, cycle, *found)
        except ClientLeft:
            http.status = LEFT
            api.over(http)
        except Exception as error:
            self._fail(http, cycle, error)
        return True

    def _run(self, http: Exchange, cycle: RequestResponseCycle, route: Route, kind: Kind) -> None:
        api = self._api
        http.openai = route.openai
        api.authorize(http, route.access)
        welcome(api, http, kind)
        body = bytes(cycle.body)
        cycle.body = bytearray()
        http.take_body(len(body))
        plan = plan_of(api, http, kind, body)
        if warms(api, plan):
            self._task(api.finish(http, partial(self._respond, plan)))
        elif plan.stream:
            self._stream(http, cycle, plan)
        else:
            self._whole(http, cycle, plan)

    async def _respond(self, plan: Plan, http: Exchange) -> None:
        await respond(self._api, http, plan)

    # ---------------------------------------------------------------- whole answers
    def _whole(self, http: Exchange, cycle: RequestResponseCycle, plan: Plan) -> None:
        call, owner = generation.open_whole(self._api, http, plan)
        try:
            generation.submit(self._api, http, call, Choice)
        except BaseException:
            owner.release()
            raise
        call.done.add_done_callback(partial(self._whole_done, http, cycle, call, owner))

    def _whole_done(
        self, http: Exchange, cycle: RequestResponseCycle, call: Call, owner: ResponseOwner, _: asyncio.Future[None]
    ) -> None:
        owner.release()
        try:
            error = None if call.client_left else whole_fault(call)
            if error is not None:
                raise error
            body = b"" if call.client_left else replies.whole(call)
        except Exception as error:
            self._fail(http, cycle, error)
            return
        if call.client_left:
            self._api.over(http)
        else:
            self._answer(http, cycle, 200, body)

    # ---------------------------------------------------------------- event streams
    def _stream(self, http: Exchange, cycle: RequestResponseCycle, plan: Plan) -> None:
        call, writer = generation.open_stream(self._api, http, plan)
        try:
            generation.submit(self._api, http, call, STREAMS[plan.kind][1])
        except BaseException:
            writer.release()
            raise
        call.done.add_done_callback(partial(self._stream_done, http, cycle, call, writer))

    def _stream_done(
        self,
        http: Exchange,
        cycle: RequestResponseCycle,
        call: StreamCall,
        writer: EventWriter,
        _: asyncio.Future[None],
    ) -> None:
        if call.client_left:
            writer.release()
            self._api.over(http)
        elif call.failed is not None and not writer.started:
            writer.release()
            self._fail(http, cycle, as_error(call.failed, call.plan.kind))
        else:
            http.answered, http.status = True, 200
            self._last(http, cycle, lambda: writer.end(call.last_events()))

    # ---------------------------------------------------------------- answers
    def _fail(self, http: Exchange, cycle: RequestResponseCycle, error: Exception) -> None:
        """Answer with an error."""
        answer = self._api.failure(http, error)
        try:
            body = http.refusal(answer, self._api.settings.error_format)
        except Exception as trouble:
            self._api.failure(http, trouble)
            cycle.transport.close()
            self._api.over(http)
        else:
            self._answer(http, cycle, answer.status, body)

    def _answer(self, http: Exchange, cycle: RequestResponseCycle, status: int, body: bytes) -> None:
        """Answer as a whole."""
        http.answered, http.status = True, status
        self._last(http, cycle, partial(write_answer, cycle, status, JSON, http.headers, body))

    def _last(self, http: Exchange, cycle: RequestResponseCycle, write: Callable[[], None]) -> None:
        """Write the end of an answer, as soon as the client has read what it has; with that the exchange is over."""
        if cycle.flow.write_paused and not cycle.disconnected:
            self._task(self._later(http, cycle, write))
            return
        self._write(http, cycle, write)

    async def _later(self, http: Exchange, cycle: RequestResponseCycle, write: Callable[[], None]) -> None:
        await cycle.flow.drain()
        self._write(http, cycle, write)

    def _write(self, http: Exchange, cycle: RequestResponseCycle, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:
            self._api.failure(http, error)
            cycle.transport.close()  # half an answer may be out
        finally:
            self._api.over(http)

    def _task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
