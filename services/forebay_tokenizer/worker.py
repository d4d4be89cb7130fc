"""The tokenizer of one process: takes work, gives results, and tokenises in threads of its own. Opens no socket.

The thread that owns the sockets calls `submit`, `call` and `cancel`, none of which ever waits for an encoding; when
`wake` has been called, it fetches `results` and sends them. Small requests that come in a quiet moment are done by that
thread itself, up to 8 in one call: waking another and being woken costs 60 to 170 us, a tiny request 20 to 50.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence

from forebay.backlog import LINK_BYTES
from forebay.errors import RequestError
from forebay.facts import LaunchFacts
from forebay.memory import give_back
from forebay.settings import Settings
from forebay.wire.messages import ControlRequest, Ids, WorkItem
from forebay_tokenizer.admission import Admitter, prompt_size
from forebay_tokenizer.caches import Segments
from forebay_tokenizer.calls import Calls, call_size
from forebay_tokenizer.checks import Limits
from forebay_tokenizer.encode import Encoder
from forebay_tokenizer.files import read_files
from forebay_tokenizer.jobs import Answer, Job, Refusal, Result, result_of
from forebay_tokenizer.lanes import Lanes, Ticket
from forebay_tokenizer.templates import ChatTemplates

__all__ = ["Answer", "Refusal", "Result", "Tokenizer", "limits_of"]

HUGE = 512 << 10
"""From this size on, in characters, a request leaves so much freed memory that it is given back (10 ms a MB)."""
INLINE = 1024
FAST_INLINE = 16384
"""Below this size, in characters, the thread of the sockets may do what has come in one turn itself: up to 0.4 ms, in
which nobody else is served. The second is for the fast encoder: up to 0.6 ms."""
INLINE_COUNT = 8
"""And no more requests than this: a tiny chat takes 30 us, however few its characters."""
FAST_CHAT = 4
"""What a character of a chat counts with the fast encoder: its template takes longer than its ids (7 us a turn)."""


class Tokenizer:
    """Life: `start`, then `submit`/`call`/`cancel`/`results` from one thread, then `stop`."""

    def __init__(
        self,
        admitter: Admitter,
        *,
        log: logging.Logger,
        wake: Callable[[], None],
        threads: int = 2,
        max_queue: int = 4096,
        max_bytes: int = LINK_BYTES,
        model_max_length: int | None = None,
    ) -> None:
        """`wake` is called from other threads, once for each time that results begin to wait; it must not block."""
        self._admitter = admitter
        self._calls = Calls(admitter, model_max_length)
        self._log = log
        self._wake = wake
        count = max(2, threads)
        self._lanes: Lanes[Job] = Lanes(count, max_queue, max_bytes)
        self._lock = threading.Lock()
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()
        """One entry for each time that a thread should look at the lanes."""
        self._finished: deque[Job] = deque()
        self._by_rid: dict[str, Job] = {}
        self.timings: list[tuple[float, float]] = []
        """Of each job in `results`: seconds that it waited for a thread, and that it took. The reader clears it."""
        self._stopping = self._abandon = False
        self._inline = INLINE if admitter.encoder.fast is None else FAST_INLINE
        self._chat_weight = 1 if admitter.encoder.fast is None else FAST_CHAT
        self._may_inline = False
        """Set by `results`: one lot between two of its calls, so that what comes faster goes to the threads."""
        self._threads = [threading.Thread(target=self._run, name=f"encode-{n}", daemon=True) for n in range(count)]

    @classmethod
    def load(
        cls, path: str, settings: Settings, facts: LaunchFacts | None, *, log: logging.Logger, wake: Callable[[], None]
    ) -> Tokenizer:
        """The tokenizer of the model at `path`; raises `SettingsError` when its files cannot be used."""
        files = read_files(path, settings.chat_template)
        templates = ChatTemplates.load(
            files,
            log,
            default_kwargs=settings.default_chat_template_kwargs,
            trust_requests=settings.trust_request_chat_template,
            chosen=settings.chat_template is not None,
        )
        encoder = Encoder.load(files, fast=settings.fast_tokenizer == "auto", log=log)
        segments = Segments(encoder, hint="\n".join(files.templates.values()))
        segments.check(log)
        give_back()  # what reading the files took: up to 60 MiB
        return cls(
            Admitter(segments, templates, limits_of(segments.encoder, settings, facts), log),
            log=log,
            wake=wake,
            threads=settings.tokenizer_threads,
            max_queue=settings.max_tokenizer_queue,
            max_bytes=settings.max_link_bytes,
            model_max_length=files.model_max_length,
        )

    def learn(self, settings: Settings, facts: LaunchFacts) -> None:
        """Hold later prompts to what the engine has said about itself."""
        self._admitter.limits = limits_of(self._admitter.encoder, settings, facts)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float) -> bool:
        """Finish what waits within `seconds` and end the threads. Returns whether all of it was finished."""
        self._stopping = True
        for _ in self._threads:
            self._signals.put(None)
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._abandon = True  # whoever still works ends after its present batch
        self._signals.put(None)
        return not any(thread.is_alive() for thread in self._threads)

    def submit(self, item: WorkItem, ids: Ids) -> None:
        """Take one work item; its result comes through `results`. A full queue refuses it there with 503."""
        self.submit_many([(item, ids)])

    def submit_many(self, work: Sequence[tuple[WorkItem, Ids]]) -> None:
        """Take what has come together, in order. The first such lot after a call of `results` may be done here."""
        jobs = [Job(item, ids, item.rids) for item, ids in work]
        sizes = [prompt_size(item) for item, _ in work]
        done = self._tiny(work, sizes)
        if done:
            self._may_inline = False
            if not self._do_here(jobs[:done]):
                done = 0
        if done < len(jobs):
            self._add(jobs[done:], sizes[done:])

    def _tiny(self, work: Sequence[tuple[WorkItem, Ids]], sizes: Sequence[int]) -> int:
        """How many of these, from the first on, the thread of the sockets may do itself."""
        if not self._may_inline:
            return 0
        left = self._inline
        count = min(len(work), INLINE_COUNT)
        for at, ((item, ids), size) in enumerate(zip(work[:count], sizes[:count], strict=True)):
            cost = size if item.chat is None else size * self._chat_weight
            if cost >= left or not _is_tiny(item, ids):
                return at
            left -= cost
        return count

    def call(self, request: ControlRequest) -> None:
        """Take one control call; its answer or refusal comes through `results`."""
        self._add([Job(request, array("q"), [request.rid])], [call_size(request)])

    def cancel(self, rid: str) -> bool:
        """Drop a request whose result has not been fetched: True if nothing of this rid will come any more."""
        with self._lock:
            job = self._by_rid.pop(rid, None)
            if job is None:
                return False
            job.cancelled.add(rid)
            return True

    def text_of(self, ids: Ids) -> str:
        """The text of a prompt that came as ids, special tokens hidden."""
        return self._admitter.encoder.decode_many([ids], skip_special_tokens=True)[0]

    @property
    def busy(self) -> bool:
        """Whether there is a job whose result has not been fetched."""
        return bool(self._by_rid)

    def waiting(self) -> int:
        """How many jobs wait for a thread."""
        return len(self._lanes)

    def results(self) -> list[Result]:
        """Everything that is finished, in the order of each lane; never waits."""
        out = []
        self._may_inline = True
        with self._lock:
            jobs, self._finished = self._finished, deque()
            for job in jobs:
                for rid in job.rids:
                    self._by_rid.pop(rid, None)
        self.timings += [(job.began - job.came, job.seconds) for job in jobs if job.began]
        for job in jobs:
            result = result_of(job)
            if result is not None:
                out.append(result)
        return out

    def _do_here(self, jobs: list[Job]) -> bool:
        """Do tiny jobs at once, if they overtake nobody; the caller fetches `results` in the same turn."""
        with self._lock:
            if not self._lanes.calm:
                return False
        self._timed(jobs)
        with self._lock:
            for job in jobs:
                self._by_rid.update(dict.fromkeys(job.rids, job))
            self._deliver(jobs)
        return True

    def _add(self, jobs: list[Job], sizes: Sequence[int]) -> None:
        refused = []
        with self._lock:
            for job, size in zip(jobs, sizes, strict=True):
                self._by_rid.update(dict.fromkeys(job.rids, job))
                if not self._lanes.add(job, size, size + 8 * len(job.ids)):
                    job.outcome = RequestError(f"the tokenizer queue is full ({len(self._lanes)} requests wait)", 503)
                    refused.append(job)
            first = self._deliver(refused)
        for _ in range(min(len(jobs) - len(refused), len(self._threads))):
            self._signals.put(None)  # a thread takes what it can, and wakes another when more is left
        if first:
            self._wake()

    def _run(self) -> None:
        while not self._abandon:
            self._signals.get()
            with self._lock:
                batch = self._lanes.take()
            if batch:
                self._timed([ticket.job for ticket in batch])
                if batch[0].size >= HUGE:
                    # Before the result leaves: another thread that frees a part of it would have to wait for this.
                    give_back()
                self._hand_back(batch)
            elif self._stopping and not len(self._lanes):
                break
        self._signals.put(None)  # the next thread may end too

    def _timed(self, jobs: list[Job]) -> None:
        began = time.perf_counter()
        self._do_safely(jobs)
        share = (time.perf_counter() - began) / len(jobs)
        for job in jobs:
            job.began, job.seconds = began, share

    def _hand_back(self, batch: list[Ticket[Job]]) -> None:
        with self._lock:  # one section for both, so that jobs leave in the order in which the lane lets them go
            released = self._lanes.finish(batch)
            first = self._deliver(released)
        if len(self._lanes) or self._stopping:
            self._signals.put(None)
        if first:
            self._wake()

    def _deliver(self, jobs: list[Job]) -> bool:
        """Under the lock: let jobs be fetched. Returns whether somebody must be woken for them."""
        first = bool(jobs) and not self._finished
        self._finished.extend(jobs)
        return first

    def _do_safely(self, jobs: list[Job]) -> None:
        trouble = self._admitter.guard(self._do, jobs)
        if trouble is not None:
            for job in jobs:
                job.outcome = job.outcome or trouble

    def _do(self, jobs: list[Job]) -> None:
        """Set the outcome of each job that somebody still waits for."""
        jobs = [job for job in jobs if len(job.cancelled) < len(job.rids)]
        work = [(job, job.work) for job in jobs if isinstance(job.work, WorkItem)]
        outcomes = self._admitter.admit_many([(item, job.ids) for job, item in work])
        for (job, _), outcome in zip(work, outcomes, strict=True):
            job.outcome = outcome
        for job in jobs:
            if isinstance(job.work, ControlRequest):
                job.outcome = self._admitter.guard(self._calls.answer, job.work)


def _is_tiny(item: WorkItem, ids: Ids) -> bool:
    """Whether nothing but the prompt's size decides what an item costs: a template of its own may be any program."""
    if len(ids) >= INLINE or len(item.rids) > 1:
        return False
    chat = item.chat
    return chat is None or not (chat.chat_template or b"chat_template" in (chat.chat_template_kwargs or b""))


def limits_of(encoder: Encoder, settings: Settings, facts: LaunchFacts | None) -> Limits:
    """The limits of prompts: the operator may make the engine's context shorter, not longer."""
    facts = facts or LaunchFacts()
    lengths = [length for length in (settings.context_length, facts.context_length) if length is not None]
    return Limits(
        vocab_size=facts.vocab_size or encoder.vocab_size,
        context_length=min(lengths, default=None),
        reserved=facts.num_reserved_tokens,
        allow_auto_truncate=settings.allow_auto_truncate,
        bound=encoder.bound,
    )
