"""Who may ask what: the keys of the routes, and the origins that browsers may call from.

| keys that are set | `normal`             | `admin`        | `force`   |
|-------------------|----------------------|----------------|-----------|
| none              | open                 | open           | 403       |
| api key           | api key              | api key        | 403       |
| admin key         | open                 | admin key      | admin key |
| both              | api key or admin key | admin key only | admin key |

`open` routes never need a key: `/`, `/live`, `/ready`, `/ping`, `/health`, `/health_generate`, and `/metrics` unless
the setting `metrics_need_key` says otherwise. Everything else, unknown paths too, is `normal`.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

from forebay.errors import RequestError

Headers = list[tuple[bytes, bytes]]


class Keys:
    """The keys of one front. Only digests are compared: neither content nor length of a key shows in the time."""

    def __init__(self, api_key: str | None, admin_api_key: str | None) -> None:
        api, admin = _digest(api_key), _digest(admin_api_key)
        self._has_admin = admin is not None
        self._accepted: dict[str, list[bytes]] = {
            "normal": [key for key in (api, admin) if key] if api else [],
            "admin": [key for key in (admin or api,) if key],
            "force": [admin] if admin else [],
            "open": [],
        }

    def check(self, access: str, authorization: bytes | None) -> None:
        """Raise `RequestError` (401, or 403 for a forced route without an admin key) unless the caller may come in."""
        if access == "force" and not self._has_admin:
            raise RequestError("Forbidden", 403)
        accepted = self._accepted[access]
        if not accepted:
            return
        word, _, given = (authorization or b"").partition(b" ")
        digest = sha256(given.strip()).digest()
        matches = [hmac.compare_digest(digest, key) for key in accepted]
        if word.lower() != b"bearer" or not any(matches):
            raise RequestError("Unauthorized", 401)


def _digest(key: str | None) -> bytes | None:
    return None if key is None else sha256(key.encode()).digest()


class Origins:
    """The origins of the setting `cors_origins`."""

    def __init__(self, setting: str) -> None:
        self._allowed = frozenset(origin.strip().encode() for origin in setting.split(",") if origin.strip())

    def headers(self, origin: bytes | None) -> Headers:
        """What an answer to a page of this origin must say so that the page may read it."""
        if origin is None or not self._allowed:
            return []
        if b"*" in self._allowed:
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", b"*")]
        vary = [(b"vary", b"origin")]
        if origin not in self._allowed:
            return vary
        named = [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", b"x-request-id")]
        return named + vary


def preflight(wanted_headers: bytes | None) -> Headers:
    """What the answer to a browser's question (OPTIONS) says besides."""
    return [
        (b"access-control-allow-methods", b"GET, POST, PUT, DELETE, HEAD, OPTIONS"),
        (b"access-control-allow-headers", wanted_headers or b"*"),
        (b"access-control-max-age", b"600"),
    ]
