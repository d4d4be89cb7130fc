"""Freed memory goes back to the system, where the C library can do that."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys

import psutil
import pytest

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


FAULTS = """
import resource, sys
from array import array
from forebay.memory import keep_freed

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def fill():
    return [array("q", bytes(200_000)) for _ in range(64)]

if sys.argv[1] == "keep":
    keep_freed()
del (last := fill())[:]
before = faults()
fill()
print(faults() - before)
"""


def faults_of(mode: str, **environ: str) -> int:
    """Page faults of a new process when it fills 12 MB anew that it has freed before."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", FAULTS, mode]
    done = subprocess.run(command, capture_output=True, text=True, env=own | environ, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have rules of their own")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    assert faults_of("keep") < 500
    assert faults_of("keep", MALLOC_TRIM_THRESHOLD_="131072") > 2_000, "the environment does not count"
