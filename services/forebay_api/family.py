"""The processes of the front as one api process sees them: by its links, and by the counters that they publish."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from forebay._version import __version__
from forebay.topology import Peer
from forebay_api.exposition import STALE, ProcessCounts, read_all
from forebay_api.mailbox import Mailbox

if TYPE_CHECKING:
    from forebay.role import Role


class Family:
    """All processes of one front."""

    def __init__(self, role: Role, mailbox: Mailbox) -> None:
        self._role = role
        self._mailbox = mailbox
        self._linked = role.topology.peers(role.me)

    def dead(self) -> list[str]:
        """Processes that we should be linked to and are not."""
        return self._mailbox.dead(self._linked)

    def counts(self) -> list[ProcessCounts]:
        """The counters of every process."""
        return read_all(self._role.run_dir, self._role.topology.processes())

    def up(self, counts: list[ProcessCounts]) -> dict[Peer, bool]:
        """Which of them are there: the linked ones by their links, other api processes by their signs of life."""
        me, dead, now = self._role.me, set(self.dead()), time.monotonic()
        return {
            one.peer: one.peer == me
            or (now - one.alive_at < STALE if one.peer.role == me.role else str(one.peer) not in dead)
            for one in counts
        }

    def introductions(self) -> list[dict[str, Any]]:
        """Every process that is there: its name, pid, cores and version, this one first."""
        me = {"name": str(self._role.me), "pid": os.getpid(), "cores": list(self._role.cores), "version": __version__}
        others = [
            {"name": str(peer), "pid": hello.pid, "cores": hello.cores, "version": hello.version}
            for peer, hello in sorted(self._mailbox.hellos.items())
        ]
        return [me, *self._siblings(), *others]

    def _siblings(self) -> list[dict[str, Any]]:
        """The other api processes, which we have no link to."""
        peers = [peer for peer in self._role.topology.processes() if peer.role == "api" and peer != self._role.me]
        counts = read_all(self._role.run_dir, peers)
        up = self.up(counts)
        out = []
        for one in counts:
            said = one.introduction()
            if up[one.peer] and said:
                cores = [int(core) for core in said["cores"].split(",") if core]
                out.append({"name": str(one.peer), "pid": int(said["pid"]), "cores": cores, "version": said["version"]})
        return out

    def engine_steps(self) -> float:
        """Steps of the engine that the detokenizers have read so far."""
        counts = read_all(self._role.run_dir, self._role.links.of_role("detokenizer"))
        return sum(one.total("engine_steps_total") for one in counts)
