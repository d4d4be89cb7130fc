"""Freed memory goes back to the system, where the C library can do that."""

from __future__ import annotations

import ctypes

import psutil

from forebay.memory import give_back

MIB = 1 << 20


def test_what_was_freed_between_pieces_in_use_goes_back() -> None:
    resident = psutil.Process().memory_info().rss
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    pieces = [libc.malloc(8000) for _ in range(8000)]
    for piece in pieces:
        ctypes.memset(piece, 1, 8000)
    for piece in pieces[:-1]:
        libc.free(piece)
    given = give_back()
    grown = psutil.Process().memory_info().rss - resident
    libc.free(pieces[-1])
    assert grown < 16 * MIB or not given
