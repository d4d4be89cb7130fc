"""CPU time of other processes, thread by thread, from `/proc/PID/task/TID/schedstat`: nanoseconds, not clock ticks."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20

Threads = dict[tuple[int, int, str], float]
"""(pid, thread id, name of the thread) -> CPU seconds so far; the first thread of a process is called `main`."""


def threads(pids: Iterable[int]) -> Threads:
    """The CPU time of every thread of these processes; those that have ended are left out."""
    found: Threads = {}
    for pid in pids:
        try:
            tasks = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for task in tasks:
            folder = f"/proc/{pid}/task/{task}"
            try:
                with open(f"{folder}/schedstat", "rb") as file:
                    spent = int(file.read().split()[0]) / 1e9
                with open(f"{folder}/comm") as file:
                    name = file.read().strip()
            except OSError:
                continue
            found[pid, int(task), "main" if int(task) == pid else name] = spent
    return found


def used(before: Threads, after: Threads) -> dict[str, dict[str, float]]:
    """pid -> thread name -> CPU seconds between two readings. Threads of one name are added up; pids are texts."""
    out: dict[str, dict[str, float]] = {}
    for key, spent in after.items():
        pid, _, name = key
        names = out.setdefault(str(pid), {})
        names[name] = names.get(name, 0.0) + spent - before.get(key, 0.0)
    return out


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_bytes()
            except OSError:
                continue
            children.setdefault(int(stat[stat.rindex(b")") + 2 :].split()[1]), []).append(int(entry))
    out, todo = [], [pid]
    while todo:
        out.append(todo.pop())
        todo += children.get(out[-1], [])
    return out


def rss_mib(pids: Iterable[int]) -> float:
    """Resident memory of the processes together, MiB; what they share is counted in each."""
    pages = 0
    for pid in pids:
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
        except OSError:
            continue
    return pages * PAGE_MIB


def pss_mib(pids: Iterable[int]) -> float:
    """The same with shared pages divided among those that share them."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return total / 1024
