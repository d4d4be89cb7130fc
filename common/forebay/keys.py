"""The keys of a front whose processes talk over TCP: one CURVE pair in a private folder, shared by all of them.

One pair, not one for each process: every process may send every other any frame, so a stolen key opens the whole
front whichever it is. Each end of a link has to prove that it holds the pair: the receiver by CURVE itself, the sender
by `forebay.gatekeeper`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import zmq

from forebay.errors import SettingsError, StartError

KEY_FILE = "front.key"
DOMAIN = b"forebay"


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A CURVE pair, both halves in Z85 (40 characters)."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return "Keys(...)"

    def guard(self, inbox: zmq.Socket[bytes]) -> None:
        """Before it binds: only who knows our public key can talk to it, and only who the gatekeeper knows."""
        inbox.setsockopt(zmq.CURVE_SERVER, 1)
        inbox.setsockopt(zmq.CURVE_SECRETKEY, self.secret.encode())
        inbox.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        inbox.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # no gatekeeper: nobody comes in

    def use(self, link: zmq.Socket[bytes]) -> None:
        """Before it connects: show that we hold the pair, and talk only to one that holds it, too."""
        link.setsockopt(zmq.CURVE_PUBLICKEY, self.public.encode())
        link.setsockopt(zmq.CURVE_SECRETKEY, self.secret.encode())
        link.setsockopt(zmq.CURVE_SERVERKEY, self.public.encode())


def make_keys(folder: Path) -> Path:
    """Make a fresh pair in `folder` (mode 0700, made if it is missing); returns its file (mode 0600).

    Raises `StartError` when there is one already: processes that run with it would be locked out.
    """
    public, secret = zmq.curve_keypair()
    path = folder / KEY_FILE
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_private(folder)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError as error:
        raise StartError(f"{path} is there already; remove it first to make other keys") from error
    except OSError as error:
        raise StartError(f"the keys cannot be written to {folder}: {error.strerror}") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(Keys(public.decode(), secret.decode())) + b"\n")
    return path


def load_keys(folder: str | Path) -> Keys:
    """The pair in `folder`; raises `SettingsError` when it is missing, damaged, or open to others."""
    path = Path(folder) / KEY_FILE
    try:
        _check_private(path.parent)
        _check_private(path)
        keys = msgspec.json.decode(path.read_bytes(), type=Keys)
        derived = zmq.curve_public(keys.secret.encode())
    except OSError as error:
        raise SettingsError(f"keys_dir: {path} cannot be read ({error.strerror}); `forebay keys` makes it") from error
    except (msgspec.DecodeError, ValueError, zmq.ZMQError) as error:
        raise SettingsError(f"keys_dir: {path} holds no keys; `forebay keys` makes them") from error
    if derived.decode() != keys.public:
        raise SettingsError(f"keys_dir: the two halves in {path} do not belong together")
    return keys


def _check_private(path: Path) -> None:
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise SettingsError(f"keys_dir: {path} is open to others (mode {mode:04o}); chmod go= {path}")
    if status.st_uid != os.geteuid():
        raise SettingsError(f"keys_dir: {path} belongs to user {status.st_uid}; it must be ours")
