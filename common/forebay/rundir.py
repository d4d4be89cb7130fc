"""The run folder: private, locked, and with room for the socket paths; what is stale in it is removed, nothing else.

One front owns one folder. A second bind on a live ipc path silently steals it, so each process holds a lock file
(`api-0.lock`) for its whole life, and the supervisor one for the front (`supervisor.lock`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from forebay.errors import StartError
from forebay.topology import MAX_SOCKET_PATH, ROLES, Peer, socket_path

LONGEST_NAME = "detokenizer-99.sock"
OURS = re.compile(rf"(?:{'|'.join(ROLES)})-\d+|notify|launcher")
"""Names of our sockets and of the processes' locks, without their endings."""
DATAGRAM = ("notify", "launcher")
SETTINGS_FILE = "settings.json"
COUNTS = ".counts"
"""Ending of the files of counters: kept when a process dies, removed with the front."""


class RunDir:
    """An open run folder; `close` removes what is ours in it, and the folder itself if `open_run_dir` made it."""

    def __init__(self, path: Path, *, made: bool) -> None:
        self.path = path
        self.made = made

    @property
    def settings_file(self) -> Path:
        """Where the supervisor leaves the settings for the processes that it starts."""
        return self.path / SETTINGS_FILE

    def close(self) -> None:
        """Remove what dead processes of ours left, and the folder if it is empty then and we made it.

        Does nothing while another front runs in it.
        """
        with contextlib.suppress(StartError), lock_front(self.path):
            for entry in self.path.iterdir():
                _remove_ours(entry)
        if self.made:
            with contextlib.suppress(OSError):  # not empty: somebody else's files are left alone
                self.path.rmdir()


def _remove_ours(entry: Path) -> None:
    """Remove a dead socket, a free lock, counters or the settings file; anything else stays, and so does the folder."""
    with contextlib.suppress(StartError):
        if entry.suffix == ".sock" and OURS.fullmatch(entry.stem):
            clear_socket(entry, socket.SOCK_DGRAM if entry.stem in DATAGRAM else socket.SOCK_STREAM)
        elif entry.suffix == ".lock" and OURS.fullmatch(entry.stem):
            Lock(entry).release()
        elif entry.name == SETTINGS_FILE or (entry.suffix == COUNTS and OURS.fullmatch(entry.stem)):
            entry.unlink(missing_ok=True)


def open_run_dir(run_dir: str | None) -> RunDir:
    """The run folder of a setting, made if it is missing (its parent must exist); None: a fresh private one.

    Raises `StartError` when the folder is not private, not ours, or its path too long for sockets.
    """
    if run_dir is None:
        return RunDir(_fresh(), made=True)
    path = Path(run_dir).absolute()
    check_length(path)
    try:
        path.mkdir(mode=0o700)
        made = True
    except FileExistsError:
        made = False
    except OSError as error:
        raise StartError(f"the run folder {path} cannot be made: {error.strerror}; choose another --run-dir") from error
    check_private(path)
    return RunDir(path, made=made)


def _fresh() -> Path:
    """A new private folder in the user's runtime folder, or in the temporary one; the first that is short enough."""
    for parent in filter(None, (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp")):  # noqa: S108
        if len(os.fsencode(parent)) + len(f"/forebay-12345678/{LONGEST_NAME}") > MAX_SOCKET_PATH:
            continue
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix="forebay-", dir=parent))
    raise StartError("no private run folder can be made in the temporary folder; name a short one with --run-dir")


def check_length(path: Path) -> None:
    """Raise `StartError` when a socket path under `path` would be too long (the system's limit is 107 bytes)."""
    length = len(os.fsencode(path / LONGEST_NAME))
    if length > MAX_SOCKET_PATH:
        room = MAX_SOCKET_PATH - len(LONGEST_NAME) - 1
        raise StartError(
            f"the run folder {path} is too long: its socket paths have {length} bytes and the system allows "
            f"{MAX_SOCKET_PATH}; choose a --run-dir of at most {room} bytes"
        )


def check_private(path: Path) -> None:
    """Raise `StartError` unless `path` is a folder of this user that nobody else can enter."""
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise StartError(f"the run folder {path} is a file; choose another --run-dir")
    if status.st_uid != os.geteuid():
        raise StartError(f"the run folder {path} belongs to user {status.st_uid}, not to us; choose another --run-dir")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise StartError(f"the run folder {path} is open to others (mode {mode:04o}); run: chmod 700 {path}")


class Lock:
    """An exclusive lock file, held until `release` or the end of the process (also when that is SIGKILL)."""

    def __init__(self, path: Path) -> None:
        """Take the lock; raises `StartError` naming the process that has it."""
        self.path = path
        self._descriptor = _locked(path)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock back and remove its file. Safe to call twice."""
        if self._descriptor >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


def lock_process(run_dir: Path, peer: Peer) -> Lock:
    """The lock of one process of the front."""
    return Lock(run_dir / f"{peer}.lock")


def lock_front(run_dir: Path) -> Lock:
    """The lock of the supervisor: one front a run folder."""
    return Lock(run_dir / "supervisor.lock")


def _locked(path: Path) -> int:
    """A locked descriptor of `path`; takes another turn when the last holder removed the file meanwhile."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StartError(f"the lock file {path} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise StartError(
                f"{path.stem} runs already in {path.parent}{holder}; stop it or choose another --run-dir"
            ) from error
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    if not text.isdecimal():
        return ""
    with contextlib.suppress(psutil.Error):
        return f" (process {text}, {psutil.Process(int(text)).name()})"
    return f" (process {text})"


def clear_stale(run_dir: Path, peers: Iterable[Peer]) -> None:
    """Remove the sockets that dead processes left; the caller holds their locks, so nobody listens on them."""
    for peer in peers:
        clear_socket(socket_path(run_dir, peer))


def clear_socket(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> None:
    """Remove a socket file that nobody listens on; raises `StartError` for a live one and for any other file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartError(f"{path} is in the way and is no socket; move it away or choose another path")
    if _is_live(path, kind):
        raise StartError(f"another process listens on {path}; stop it or choose another path")
    path.unlink(missing_ok=True)


def _is_live(path: Path, kind: socket.SocketKind) -> bool:
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.setblocking(False)
        code = probe.connect_ex(str(path))
    return code not in (errno.ECONNREFUSED, errno.ENOENT)
