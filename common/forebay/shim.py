"""`Front`: the link that an engine's scheduler calls, in the engine's own process: how it starts and stops.

What it takes in stands in `intake`, what it sends in `results`; nothing there ever blocks a step.

Life: `launch` (starts the services) or `connect` (they run already); then `wait_ingress`, `drain`, `push_generation`
in the scheduler's loop; `close` at the end. One thread calls it, the scheduler's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import zmq

from forebay import affinity
from forebay.announce import Announcement
from forebay.backlog import LINK_BYTES
from forebay.config import load
from forebay.counters import Counters, counts_path
from forebay.facts import make_blob
from forebay.intake import Intake
from forebay.keys import load_keys
from forebay.launch import Services, start_services
from forebay.lifetime import new_incarnation
from forebay.link import LINGER_MS
from forebay.links import Links
from forebay.listen import client_url
from forebay.memory import keep_freed
from forebay.rundir import clear_socket
from forebay.settings import Settings
from forebay.shards import ResumeLimits
from forebay.topology import Peer, Topology, check_endpoints, socket_path
from forebay.wire import ingress
from forebay.wire.messages import AbortRequest, ControlRequest, GenerateRequest

log = logging.getLogger("forebay.shim")


def should_launch(environ: Mapping[str, str], rank: int, switch: str = "FOREBAY") -> bool:
    """The launch gate for engines with several ranks: only rank 0, and only when the switch is set to 1 or true."""
    return rank == 0 and environ.get(switch, "").strip().lower() in ("1", "true", "yes", "on")


class Front(Intake):
    """The front, seen from the engine. Make it with `Front.launch` or `Front.connect`."""

    def __init__(
        self,
        links: Links,
        incarnation: int,
        announcement: Announcement,
        *,
        decoder: ingress.RequestDecoder | None = None,
        on_close: Callable[[], None] | None = None,
        resume: ResumeLimits | None = None,
    ) -> None:
        super().__init__(links, incarnation, announcement, decoder, resume)
        self._on_close = on_close
        self.services: Services | None = None
        """The services that `launch` started: their settings, run folder and state."""

    # ---------------------------------------------------------------- start and stop
    @classmethod
    def launch(
        cls,
        facts: Mapping[str, Any],
        settings: Settings | None = None,
        *,
        decoder: ingress.RequestDecoder | None = None,
        cores: Sequence[int] | None = None,
        keep_memory: bool = False,
    ) -> Self:
        """Start the services beside this engine, under a supervisor that ends with it, and connect to them.

        `settings` name address, counts of processes and so on; by default they come from the environment
        (FOREBAY_...). `cores` bounds the front to the engine rank's own NUMA mask. The calling thread is narrowed to
        the engine's cores last. `keep_memory`: see `connect`. Returns at once: requests come when the services are
        ready. Raises `StartError` when the services cannot start, and `SettingsError`, before anything starts, for
        facts of a wrong type.
        """
        make_blob(dict(facts))
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        wanted = settings or load(config=None, environ=os.environ, overrides={})
        s = wanted
        plan = affinity.plan(affinity.allowed_cores(), s.apis, s.tokenizers, s.detokenizers, s.cores, within=cores)
        if wanted.tokenizer_path is None and isinstance(facts.get("tokenizer_path"), str):
            wanted = msgspec.structs.replace(wanted, tokenizer_path=facts["tokenizer_path"])
        services = start_services(wanted)
        try:
            front = cls.connect(
                services.run_dir,
                facts,
                apis=s.apis,
                tokenizers=s.tokenizers,
                detokenizers=s.detokenizers,
                endpoints=s.endpoints,
                keys_dir=s.keys_dir,
                decoder=decoder,
                io_cores=plan.services(),
                keep_memory=keep_memory,
                max_link_bytes=s.max_link_bytes,
                on_close=services.stop,
                resume=ResumeLimits(s.resume_kept_bytes, s.resume_timeout),
            )
        except BaseException:
            services.stop()
            raise
        front.services = services
        affinity.apply_to_thread(plan.of(Peer("engine", 0)))
        log.info("serving at %s, cores: %s", client_url(services.settings), plan.describe())
        return front

    @classmethod
    def connect(
        cls,
        run_dir: str | Path,
        facts: Mapping[str, Any],
        *,
        apis: int = 1,
        tokenizers: int = 1,
        detokenizers: int = 1,
        number: int = 0,
        endpoints: Mapping[str, str] | None = None,
        keys_dir: str | Path | None = None,
        decoder: ingress.RequestDecoder | None = None,
        io_cores: Sequence[int] = (),
        keep_memory: bool = False,
        max_link_bytes: int = LINK_BYTES,
        on_close: Callable[[], None] | None = None,
        resume: ResumeLimits | None = None,
    ) -> Self:
        """Join services that run already, or are just starting, under `run_dir`.

        For a front on several hosts `endpoints` and `keys_dir` are those of its settings, and `run_dir` is a private
        folder of this host.
        `facts` are the launch facts (see `forebay.facts`). `io_cores`: where ZeroMQ's I/O thread runs, normally the
        services' cores (empty: where the calling thread runs). `keep_memory`: this process keeps up to 64 MiB that it
        frees, which makes `drain` of long prompts 5 times cheaper (`forebay.memory.keep_freed`). `max_link_bytes`: as
        in the settings. `resume`: what is kept for a detokenizer that dies (the settings `resume_kept_bytes` and
        `resume_timeout`; by default their defaults). Raises `SettingsError` for facts of a wrong type and `StartError`
        when the inbox cannot be bound: another engine serves there, or a file is in the way.
        """
        if keep_memory:
            keep_freed()
        topology = Topology(Path(run_dir), apis, tokenizers, detokenizers, endpoints or {})
        check_endpoints(topology.endpoints)
        keys = None if keys_dir is None else load_keys(keys_dir)
        incarnation = new_incarnation()
        me = Peer("engine", number)
        announcement = Announcement(me, incarnation, facts)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        before = affinity.thread_cores()
        # I/O threads are made with the first socket and keep the cores that this thread has at that moment.
        moved = affinity.apply_to_thread(io_cores)
        try:
            clear_socket(socket_path(topology.run_dir, me))
            links = Links(
                context, me, topology.address, topology.peers(me), announcement.greeting, keys, max_link_bytes
            )
        except BaseException:
            context.destroy(0)
            raise
        finally:
            if moved:
                affinity.apply_to_thread(before)

        def close() -> None:
            try:
                context.destroy(LINGER_MS)
            finally:
                if on_close is not None:
                    on_close()

        limits = ResumeLimits() if resume is None else resume
        front = cls(links, incarnation, announcement, decoder=decoder, on_close=close, resume=limits)
        front.publish(Counters(counts_path(topology.run_dir, me)))
        return front

    def close(self) -> None:
        """Close the links, which takes up to half a second when a peer does not read; the services that `launch`
        started are stopped. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        try:
            self._links.close()
        finally:
            if self._on_close is not None:
                self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


__all__ = ["AbortRequest", "ControlRequest", "Front", "GenerateRequest", "should_launch"]
