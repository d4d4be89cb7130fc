"""Which processes exist, and at which address each has its one inbox: a table, no sockets.

Every process binds one PULL socket, its inbox; everybody who has something to say to it connects a PUSH. Processes
of different roles are all linked, in both directions, so that each notices within milliseconds when another dies.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from forebay.errors import SettingsError, StartError

if TYPE_CHECKING:
    from forebay.settings import Settings

ROLES = ("api", "tokenizer", "detokenizer", "engine")
MAX_SOCKET_PATH = 107
"""Bytes of a unix socket path on Linux (`sun_path` without its final NUL); one more and bind fails."""
NAME = re.compile(rf"({'|'.join(ROLES)})-(0|[1-9]\d?)")
TCP = re.compile(r"tcp://(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):(\d{1,5})")


class Peer(NamedTuple):
    """A process of the front, or the engine that it serves."""

    role: str
    number: int

    def __str__(self) -> str:
        return f"{self.role}-{self.number}"


@dataclass(frozen=True, slots=True)
class Topology:
    """All processes of one front and where their inboxes are."""

    run_dir: Path
    apis: int = 1
    tokenizers: int = 1
    detokenizers: int = 1
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Processes that are reached over TCP (`engine-0` -> `tcp://10.0.0.5:7001`); all others have a socket in the run
    folder."""

    @classmethod
    def of(cls, settings: Settings, run_dir: Path) -> Topology:
        """The processes that these settings ask for."""
        s = settings
        return cls(run_dir, s.apis, s.tokenizers, s.detokenizers, s.endpoints or {})

    def processes(self) -> list[Peer]:
        """Every process, in the order of the roles."""
        counts = (self.apis, self.tokenizers, self.detokenizers, 1)
        return [Peer(role, number) for role, count in zip(ROLES, counts, strict=True) for number in range(count)]

    def peers(self, me: Peer) -> list[Peer]:
        """The processes that `me` has links to: all of the other roles."""
        return [peer for peer in self.processes() if peer.role != me.role]

    def address(self, peer: Peer) -> str:
        """The ZeroMQ address of a process's inbox; raises `StartError` when the path is too long for a socket."""
        if str(peer) in self.endpoints:
            return self.endpoints[str(peer)]
        path = str(socket_path(self.run_dir, peer))
        if len(path.encode()) > MAX_SOCKET_PATH:
            raise StartError(
                f"the socket path {path} has {len(path.encode())} bytes and the system allows {MAX_SOCKET_PATH}: "
                "choose a shorter --run-dir"
            )
        return f"ipc://{path}"


def check_endpoints(endpoints: Mapping[str, object]) -> None:
    """Raise `SettingsError` for a name that no process can have, or an address without host and port."""
    for name, address in endpoints.items():
        if NAME.fullmatch(name) is None:
            raise SettingsError(f"endpoints: {name!r} names no process; a name is like api-0 or engine-0")
        found = TCP.fullmatch(address) if isinstance(address, str) else None
        if found is None or not 0 < int(found[1]) < 65536 or "//0.0.0.0:" in found[0] or "//[::]:" in found[0]:
            raise SettingsError(f"endpoints: the address of {name} must be like tcp://10.0.0.5:7001, not {address!r}")
    if len(set(endpoints.values())) < len(endpoints):
        raise SettingsError("endpoints: two processes have the same address")


def socket_path(run_dir: Path, peer: Peer) -> Path:
    """The socket file of a process's inbox."""
    return run_dir / f"{peer}.sock"


def shard_of(rid: str, shards: int) -> int:
    """The number of the detokenizer that owns a request: the one rule that all processes share."""
    return zlib.crc32(rid.encode()) % shards if shards > 1 else 0
