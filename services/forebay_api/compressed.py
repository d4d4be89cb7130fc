"""Request bodies that come compressed (header `x-body-compressed`). The size is checked while they are unpacked."""

from __future__ import annotations

import asyncio
import io

from forebay.errors import RequestError

ASIDE = 64 * 1024
"""Compressed bytes from which on a thread unpacks them: a full body of 64 MiB takes 60 ms and more."""
MAX_WINDOW = 1 << 27
"""Largest window of a frame: what its decoder may allocate."""


async def unpacked(body: bytes, form: bytes, limit: int) -> bytes:
    """The body itself; raises `RequestError`: 400 for another form or bad data, 413 over `limit` bytes."""
    if form.strip().lower() != b"zstd":
        raise RequestError("x-body-compressed must be zstd", 400, param="x-body-compressed")
    if len(body) < ASIDE:
        return unpack_zstd(body, limit)
    return await asyncio.get_running_loop().run_in_executor(None, unpack_zstd, body, limit)


def unpack_zstd(body: bytes, limit: int) -> bytes:
    """Unpack all frames of a zstd body, but never more than `limit` bytes and one."""
    try:
        import zstandard
    except ImportError:
        raise RequestError("zstd bodies need the package zstandard on the server", 501) from None
    decoder = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
    try:
        with decoder.stream_reader(io.BytesIO(body), read_across_frames=True) as reader:
            out: bytes = reader.read(limit + 1)
    except zstandard.ZstdError as error:
        raise RequestError(f"the body is no valid zstd: {error}", 400) from None
    if len(out) > limit:
        raise RequestError(f"the request body is over the limit of {limit} bytes", 413)
    return out
