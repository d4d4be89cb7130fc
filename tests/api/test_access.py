"""Keys and origins: the whole table of who may ask what."""

from __future__ import annotations

import pytest

from forebay.errors import RequestError
from forebay_api.access import Keys, Origins

OPEN, REFUSED, FORBIDDEN = 200, 401, 403


def status(keys: Keys, access: str, authorization: bytes | None) -> int:
    try:
        keys.check(access, authorization)
    except RequestError as error:
        return error.status
    return OPEN


# Configured api and admin key; route; the answer to: no key, the api key, the admin key.
TABLE = [
    (None, None, "normal", OPEN, OPEN, OPEN),
    (None, None, "admin", OPEN, OPEN, OPEN),
    (None, None, "force", FORBIDDEN, FORBIDDEN, FORBIDDEN),
    ("api", None, "normal", REFUSED, OPEN, REFUSED),
    ("api", None, "admin", REFUSED, OPEN, REFUSED),
    ("api", None, "force", FORBIDDEN, FORBIDDEN, FORBIDDEN),
    (None, "adm", "normal", OPEN, OPEN, OPEN),
    (None, "adm", "admin", REFUSED, REFUSED, OPEN),
    (None, "adm", "force", REFUSED, REFUSED, OPEN),
    ("api", "adm", "normal", REFUSED, OPEN, OPEN),
    ("api", "adm", "admin", REFUSED, REFUSED, OPEN),
    ("api", "adm", "force", REFUSED, REFUSED, OPEN),
    ("api", "adm", "open", OPEN, OPEN, OPEN),
]


@pytest.mark.parametrize(("api", "admin", "access", "without", "with_api", "with_admin"), TABLE)
def test_the_table_of_keys(
    api: str | None, admin: str | None, access: str, without: int, with_api: int, with_admin: int
) -> None:
    keys = Keys(api, admin)
    given = [status(keys, access, header) for header in (None, b"Bearer api", b"Bearer adm")]
    assert given == [without, with_api, with_admin]


@pytest.mark.parametrize(
    "header",
    [b"", b"Bearer", b"Bearer ", b"api", b"Basic api", b"Bearer apix", b"Bearer ap", b"Bearer API", b"Bearer \xff\xfe"],
)
def test_anything_but_the_key_is_refused(header: bytes) -> None:
    assert status(Keys("api", None), "normal", header) == REFUSED


@pytest.mark.parametrize("word", [b"Bearer", b"bearer", b"BEARER"])
def test_the_word_bearer_may_be_in_any_case(word: bytes) -> None:
    assert status(Keys("api", None), "normal", word + b" api") == OPEN


def test_a_key_outside_ascii_is_compared_as_utf8() -> None:
    keys = Keys("Schlüssel", None)
    assert status(keys, "normal", "Bearer Schlüssel".encode()) == OPEN
    assert status(keys, "normal", "Bearer Schlüssel".encode("latin-1")) == REFUSED


def test_any_origin_is_answered_when_all_are_allowed() -> None:
    assert (b"access-control-allow-origin", b"*") in Origins("*").headers(b"http://x")


def test_only_the_origins_of_the_setting_are_answered() -> None:
    origins = Origins("http://a, http://b")
    assert (b"access-control-allow-origin", b"http://b") in origins.headers(b"http://b")
    assert origins.headers(b"http://c") == [(b"vary", b"origin")]


def test_a_request_without_origin_gets_no_header() -> None:
    assert Origins("*").headers(None) == []
