"""The api process: HTTP server, inbox and request table on one event loop; warm-up, drain, stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from pathlib import Path

import uvloop

from forebay.errors import PeerError, SettingsError, StartError
from forebay.role import BURST, Role
from forebay.rundir import clear_socket
from forebay.tally import EVERY
from forebay.wire.frames import Kind, kind_of
from forebay_api.app import Api
from forebay_api.direct import Direct
from forebay_api.door import Door, descriptors_for_clients
from forebay_api.mailbox import Mailbox
from forebay_api.server import BACKLOG, Server, make_server

log = logging.getLogger("forebay.api")

HELLO = bytes([Kind.HELLO])

PATIENCE = 0.05
"""Seconds between looks at a state that no event announces (shutdown, first links)."""


def run(role: Role) -> None:
    """Serve until the role stops. Raises `StartError` when the address cannot be had or the warm-up fails."""
    listener = listen(role)
    try:
        uvloop.run(_serve(role, listener))
    finally:
        listener.close()
        if role.settings.uds is not None:
            Path(role.settings.uds).unlink(missing_ok=True)


def listen(role: Role) -> socket.socket:
    """The listening socket; several api processes share one port, each with an accept queue of its own.

    One of several begins to listen only when it can serve (`_open_door`): the others take its share meanwhile.
    """
    s = role.settings
    try:
        if s.uds is not None:
            clear_socket(Path(s.uds))  # an earlier life of this process may have been killed
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(s.uds)
        else:
            family, kind, protocol, _, address = socket.getaddrinfo(s.host, s.port, type=socket.SOCK_STREAM)[0]
            listener = socket.socket(family, kind, protocol)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if s.apis > 1:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(address)
        if s.apis == 1:
            listener.listen(BACKLOG)
    except OSError as error:
        where = s.uds or f"{s.host}:{s.port}"
        raise StartError(f"cannot listen on {where}: {error.strerror}; choose another --port or --host") from error
    listener.setblocking(False)
    scheme = "http" if s.tls_certfile is None else "https"
    log.info("listening on %s", s.uds or "{}://{}:{}".format(scheme, *listener.getsockname()[:2]))
    return listener


LISTEN_LATEST = 3.0
"""Seconds until one of several api processes listens, ready or not: while the model loads, `/live` has to answer."""
LAST_CALL = 0.5
"""Seconds in which connections that were accepted before the listener was closed may send their request."""
TELL_EVERY = 10.0
"""Seconds between two log lines about who is still missing."""


class Post:
    """Joins the inbox and the link monitors to the event loop: one callback drains all that waits."""

    def __init__(self, role: Role, mailbox: Mailbox, loop: asyncio.AbstractEventLoop) -> None:
        self._role, self._mailbox, self._loop = role, mailbox, loop
        self._fds = [role.links.inbox_fd(), *role.links.monitor_fds()]
        loop.add_reader(self._fds[0], self.on_frames)
        for fd in self._fds[1:]:
            loop.add_reader(fd, self.on_links)
        # The descriptors are edge-triggered: what came before the reader was added raises no event.
        loop.call_soon(self.on_links)
        loop.call_soon(self.on_frames)

    def on_frames(self) -> None:
        """Take what waits in the inbox; of very much a part, so that clients are heard in between."""
        links = self._role.links
        frame = links.receive()
        if frame is None:
            self._mailbox.settle()
            return
        waiting = links.readable()
        if not waiting and self._mailbox.steady(frame):
            if self._mailbox.new_lives:
                self._mailbox.settle()
            return
        frames = [frame]
        while waiting and len(frames) < BURST and (frame := links.receive()) is not None:
            frames.append(frame)
        more = len(frames) == BURST and links.readable()
        if more:
            self._loop.call_soon(self.on_frames)  # the descriptor is edge-triggered: the rest raises no event
        self._mailbox.take(frames, more)
        if len(frames) > 1 or frames[0][:1] == HELLO:
            self._greetings(frames)

    def _greetings(self, frames: list[bytes]) -> None:
        for frame in frames:
            if frame[:1] == HELLO:  # it may have no byte at all
                try:
                    kind_of(frame)
                    self._role.greeted(frame)
                except (PeerError, SettingsError) as error:
                    log.warning("a greeting cannot be read: %s", error)

    def on_links(self) -> None:
        """See which links came up or went down."""
        for peer, up in self._role.links.changes():
            log.debug("link to %s is %s", peer, "up" if up else "down")
            self._mailbox.link_changed(peer, up)
        if self._role.links.stirred:
            self._loop.call_later(PATIENCE, self.on_links)

    def close(self) -> None:
        """Leave the loop."""
        for fd in self._fds:
            self._loop.remove_reader(fd)


async def _serve(role: Role, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    stopping = role.stop

    def on_signal() -> None:
        if role.stopping:
            os._exit(143)
        stopping()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    s = role.settings
    mailbox = Mailbox(
        role.me.number,
        s.detokenizers,
        role.links.send,
        loop,
        apis=s.apis,
        life=role.incarnation,
        dispatch_wait=s.dispatch_wait,
        resume_timeout=s.resume_timeout,
        post=role.links.post,
    )
    mailbox.greet = role.links.greet_all
    post = Post(role, mailbox, loop)
    api = Api(role, mailbox)
    door = Door.of(role.settings, descriptors_for_clients())
    door.direct = Direct(api).take
    role.tally.watch(lambda: door.refused, role.counters.counter("refused_connections_total"))
    loop.add_signal_handler(signal.SIGHUP, _reload, role, api)
    server = make_server(api, role.settings, door)
    door.sweep_forever(loop)
    _tally_forever(role, loop)
    serving = loop.create_task(_open_door(api, server, listener))
    try:
        await _warm_up(role, api, stop)
        if api.warm:
            await _until_listening(server, serving)
            role.ready(f"serving {api.model_name()}")
        await _watch(role, stop, serving)
        await _last_call(api, server, listener)
        await _drain(role, api)
    finally:
        server.should_exit = True
        server.force_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        post.close()


def _reload(role: Role, api: Api) -> None:
    role.ask_reload()
    if role.reload_if_asked():
        api.use_keys()


async def _open_door(api: Api, server: Server, listener: socket.socket) -> None:
    """Run the HTTP server; one of several waits with that until it can serve, for a bounded time."""
    deadline = time.monotonic() + LISTEN_LATEST
    while api.settings.apis > 1 and not (api.warm or api.leaving) and time.monotonic() < deadline:
        await asyncio.sleep(PATIENCE)
    await server.serve(sockets=[listener])


async def _until_listening(server: Server, serving: asyncio.Task[None]) -> None:
    """Wait until clients can connect: who is told that this process is ready may connect at once."""
    while not (server.started or serving.done()):
        await asyncio.sleep(PATIENCE / 10)


async def _last_call(api: Api, server: Server, listener: socket.socket) -> None:
    """Leave the port to the other api processes; who is connected already is served once more.

    A single process keeps its listener: a 503 says more than a refused connection.
    """
    api.leaving = True
    api.role.links.greet_all()
    if api.settings.apis == 1 or not server.started:
        return
    server.door.last_call = True
    listener.listen(0)  # the kernel hands on no more; what it has handed on is accepted in the next turns
    await asyncio.sleep(PATIENCE)
    for accepting in server.servers:
        accepting.close()
    server.door.close_idle()
    await asyncio.sleep(LAST_CALL)
    server.door.close_idle()


def _tally_forever(role: Role, loop: asyncio.AbstractEventLoop) -> None:
    role.tally.copy(time.monotonic())
    loop.call_later(EVERY, _tally_forever, role, loop)


async def _warm_up(role: Role, api: Api, stop: asyncio.Event) -> None:
    """Wait for all processes and for one answer of the engine, then call this process ready."""
    deadline = time.monotonic() + role.settings.warmup_timeout
    told = time.monotonic() + TELL_EVERY
    while api.mailbox.missing() and not stop.is_set():
        if time.monotonic() > told:
            log.info("waiting for %s", ", ".join(api.mailbox.missing()))
            told += TELL_EVERY
        if time.monotonic() > deadline:
            raise StartError(f"no {', '.join(api.mailbox.missing())} within {role.settings.warmup_timeout:g} s")
        await asyncio.sleep(PATIENCE)
    if stop.is_set():
        return
    if role.settings.warmup:
        loop = asyncio.get_running_loop()
        probe, stopped = loop.create_task(api.probe_engine()), loop.create_task(stop.wait())
        try:
            patience = max(0.1, deadline - time.monotonic())
            await asyncio.wait({probe, stopped}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        finally:
            probe.cancel()
            stopped.cancel()
        if stop.is_set():
            return
        if not probe.done() or probe.cancelled():
            raise StartError(f"the warm-up request was not answered within {role.settings.warmup_timeout:g} s")
        probe.result()
    api.admission()  # sampling defaults that cannot be used stop the start, not the first request
    api.warm = True


async def _watch(role: Role, stop: asyncio.Event, serving: asyncio.Task[None]) -> None:
    """Keep the watchdog content until a stop is asked for, or the server ends by itself."""
    interval = role.notifier.watchdog_interval
    stopped = asyncio.get_running_loop().create_task(stop.wait())
    try:
        while not stop.is_set() and not serving.done():
            await asyncio.wait({stopped, serving}, timeout=interval, return_when=asyncio.FIRST_COMPLETED)
            if interval is not None:
                role.notifier.watchdog()
    finally:
        stopped.cancel()
    if serving.done() and not stop.is_set():
        raise StartError("the HTTP server ended by itself") from serving.exception()


async def _drain(role: Role, api: Api) -> None:
    """Let running requests finish within the drain time; then end the rest."""
    api.draining = True
    deadline = time.monotonic() + role.settings.drain_timeout
    while api.open_calls and time.monotonic() < deadline:
        await asyncio.sleep(PATIENCE)
    if api.open_calls:
        log.warning("%d requests did not finish in time and are aborted", api.open_calls)
        for call in api.mailbox.calls():
            api.mailbox.shut(call)
        await asyncio.sleep(PATIENCE)
