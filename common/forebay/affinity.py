"""Which process runs on which cores: a pure rule (`plan`), and the few calls that apply its answer to a process.

The automatic rule, over the sorted allowed cores (the container's set, or the engine rank's own NUMA mask): with
fewer than 4 nothing is pinned. Else the engine's launch loop keeps the first `min(2, n // 4)` and the services share
the rest, each process on its own cores; cores left over go to the api processes first, then to the tokenizers. With
more processes than cores, processes share: never with the engine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from forebay.errors import SettingsError
from forebay.topology import Peer

log = logging.getLogger("forebay.affinity")

FEWEST = 4
"""Allowed cores below which pinning does harm: two processes forced onto one core wait for each other."""
GRAMMAR = "write engine=0-1;api=2;tokenizer-0=3;detokenizer=2,3, or a list such as 0-7, or off"


@dataclass(frozen=True)
class CorePlan:
    """Cores of every process. An empty tuple means that the process is not pinned."""

    cores: Mapping[Peer, tuple[int, ...]] = field(default_factory=dict)
    reason: str = ""
    """Why nothing is pinned, or which rule was used."""

    def of(self, peer: Peer) -> tuple[int, ...]:
        """The cores of one process, ascending."""
        return self.cores.get(peer, ())

    def services(self) -> tuple[int, ...]:
        """The cores of all processes but the engine: where the ZeroMQ threads of the engine belong, too."""
        return tuple(sorted({core for peer, own in self.cores.items() if peer.role != "engine" for core in own}))

    def describe(self) -> str:
        """One line for the log: every process and its cores, then the rule."""
        parts = [f"{peer}={show_cores(own)}" for peer, own in self.cores.items() if own]
        return f"{' '.join(parts) or 'nothing is pinned'} ({self.reason})"


def plan(
    allowed: Sequence[int],
    apis: int,
    tokenizers: int,
    detokenizers: int,
    explicit: str | None = None,
    within: Sequence[int] | None = None,
) -> CorePlan:
    """Divide the allowed cores; pure. Every process of a front computes the same plan from the same numbers.

    `allowed` is empty where the system has no affinity call. `explicit` is the setting `cores`; `within` is a further
    bound, an engine rank's NUMA mask. Raises `SettingsError` when an explicit plan leaves a process without cores.
    """
    counts = {"engine": 1, "api": apis, "tokenizer": tokenizers, "detokenizer": detokenizers}
    peers = [Peer(role, number) for role, count in counts.items() for number in range(count)]
    usable = sorted(set(allowed) & set(allowed if within is None else within))
    if explicit == "off":
        return CorePlan(reason="cores=off")
    if not allowed:
        return CorePlan(reason="this system cannot pin processes")
    if explicit is None:
        return _automatic(usable, peers)
    if "=" not in explicit:
        wanted = _core_list(explicit, explicit)
        return _automatic(_intersect(explicit, wanted, usable), peers)
    return CorePlan(_explicit(explicit, usable, peers), "as set by cores")


def _automatic(usable: Sequence[int], peers: Sequence[Peer]) -> CorePlan:
    if len(usable) < FEWEST:
        return CorePlan(reason=f"{len(usable)} allowed cores, pinning starts at {FEWEST}")
    reserve = min(2, len(usable) // 4)
    services = [peer for peer in peers if peer.role != "engine"]
    cores = {Peer("engine", 0): tuple(usable[:reserve])}
    cores.update(_share(usable[reserve:], services))
    return CorePlan(cores, f"automatic over {show_cores(usable)}")


def _share(cores: Sequence[int], processes: Sequence[Peer]) -> dict[Peer, tuple[int, ...]]:
    """Neighbouring cores for each process in turn; the first ones (api) get one more while cores are left over."""
    each, left = divmod(len(cores), len(processes))
    if each == 0:
        return {peer: (cores[turn % len(cores)],) for turn, peer in enumerate(processes)}
    shares = {}
    start = 0
    for turn, peer in enumerate(processes):
        end = start + each + (turn < left)
        shares[peer] = tuple(cores[start:end])
        start = end
    return shares


def _explicit(text: str, usable: Sequence[int], peers: Sequence[Peer]) -> dict[Peer, tuple[int, ...]]:
    """A plan of `role=list` and `role-number=list` entries; who is not named gets the cores that nobody named."""
    entries = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        name, _, cores = (piece.strip() for piece in part.partition("="))
        if name not in {str(peer) for peer in peers} | {peer.role for peer in peers}:
            raise SettingsError(f"cores: {name!r} in {part!r} is no process of this front; {GRAMMAR}")
        if name in entries:
            raise SettingsError(f"cores: {name} is named twice")
        entries[name] = _intersect(part, _core_list(cores, part), usable)
    rest = tuple(core for core in usable if not any(core in own for own in entries.values()))
    found = {peer: entries.get(str(peer), entries.get(peer.role, rest)) for peer in peers}
    bare = [str(peer) for peer, own in found.items() if not own]
    if bare:
        raise SettingsError(f"cores: no core is left for {', '.join(bare)}; name them in cores, too ({GRAMMAR})")
    return found


def _core_list(text: str, part: str) -> set[int]:
    """The numbers of `0`, `2,3` or `0-3,8`."""
    cores: set[int] = set()
    for piece in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?", piece)
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise SettingsError(f"cores: {part!r} is not a list of cores; {GRAMMAR}")
        cores.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return cores


def _intersect(part: str, wanted: set[int], usable: Sequence[int]) -> tuple[int, ...]:
    both = tuple(core for core in usable if core in wanted)
    if not both:
        raise SettingsError(
            f"cores: {part!r} names no core that this process may use ({show_cores(usable) or 'none'}); choose among "
            "those, or change the CPU set of the container or service"
        )
    return both


def show_cores(cores: Sequence[int]) -> str:
    """Ascending cores in short: `0-3,8`."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def allowed_cores() -> list[int]:
    """The cores that this process may use now, ascending; empty where the system has no affinity call."""
    if not hasattr(psutil.Process, "cpu_affinity"):
        return []
    return sorted(psutil.Process().cpu_affinity() or [])


def thread_cores() -> list[int]:
    """The cores that the calling thread may use now, ascending; empty where the system has no affinity call."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def apply(cores: Sequence[int]) -> bool:
    """Confine this process, with every thread it has now, to `cores`; threads made later inherit them.

    psutil moves the main thread only, so on Linux the others (ZeroMQ's I/O threads among them) are moved one by one.
    A refusal is a warning and the process stays where it was: False.
    """
    if not cores:
        return False
    try:
        psutil.Process().cpu_affinity(list(cores))
        for thread in _other_threads():
            with contextlib.suppress(ProcessLookupError):  # it ended in the meantime
                os.sched_setaffinity(thread, cores)
    except (psutil.Error, OSError, ValueError, AttributeError) as error:
        log.warning("cannot run on cores %s (%s); running unpinned", show_cores(cores), error)
        return False
    return True


def apply_to_thread(cores: Sequence[int]) -> bool:
    """Confine only the calling thread to `cores` (an engine's loop, once its services run). A refusal is a warning."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        return False
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        log.warning("cannot run this thread on cores %s (%s); it stays unpinned", show_cores(cores), error)
        return False
    return True


def _other_threads() -> list[int]:
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        return []
    return [int(task.name) for task in tasks.iterdir() if int(task.name) != os.getpid()]
