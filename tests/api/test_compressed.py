"""Compressed bodies: unpacked within the limit, refused clearly."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import zstandard

from forebay.errors import RequestError
from forebay_api.compressed import unpack_zstd, unpacked
from forebay_api.http import Bodies, Exchange

TEXT = b'{"text": "' + b"a" * 100_000 + b'"}'
PACKED = zstandard.compress(TEXT)


def refused(body: bytes, limit: int) -> int:
    with pytest.raises(RequestError) as caught:
        unpack_zstd(body, limit)
    return caught.value.status


def test_a_body_comes_out_as_it_went_in() -> None:
    assert unpack_zstd(PACKED, len(TEXT)) == TEXT


def test_two_frames_are_one_body() -> None:
    assert unpack_zstd(zstandard.compress(b"ab") + zstandard.compress(b"cd"), 10) == b"abcd"


def test_one_byte_over_the_limit_is_refused() -> None:
    assert refused(PACKED, len(TEXT) - 1) == 413


def test_a_bomb_is_refused_without_unpacking_it() -> None:
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 26))
    assert len(bomb) < 10_000
    assert refused(bomb, 1 << 20) == 413


@pytest.mark.parametrize("body", [b"no zstd at all", PACKED[:4] + b"\xff" * 40])
def test_other_bytes_are_a_bad_request(body: bytes) -> None:
    assert refused(body, 1000) == 400


def test_another_form_is_a_bad_request() -> None:
    with pytest.raises(RequestError) as caught:
        asyncio.run(unpacked(b"x", b"gzip", 10))
    assert (caught.value.status, caught.value.param) == (400, "x-body-compressed")


def test_a_big_body_is_unpacked_aside() -> None:
    noise = bytes(range(256)) * 4000
    packed = zstandard.ZstdCompressor(level=-50).compress(noise) + zstandard.compress(TEXT)
    assert asyncio.run(unpacked(packed, b" ZSTD ", 10_000_000)) == noise + TEXT


def test_what_was_unpacked_counts_among_the_bodies_under_way() -> None:
    packed = zstandard.compress(b" " * 100_000)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": packed, "more_body": False}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    async def read(limit: int) -> Bodies:
        scope = {"headers": [(b"x-body-compressed", b"zstd")]}
        http = Exchange(scope, receive, send, [])
        http.bodies = Bodies(limit)
        assert len(await http.body(200_000)) == 100_000
        assert http.bodies.held == 100_000
        http.forget_body()
        return http.bodies

    assert asyncio.run(read(100_000)).held == 0
    with pytest.raises(RequestError) as caught:
        asyncio.run(read(99_999))
    assert caught.value.status == 503
