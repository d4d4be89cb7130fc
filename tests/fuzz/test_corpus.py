"""Every committed input through its target, and thousands of neighbours of each: bounded, the same in every run.

`make fuzz` goes on from the same inputs, guided by coverage and without a bound.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.seeds import CORPUS, plain
from tests.fuzz.targets import BODIES, READERS, TARGETS

SEEDS = sorted(path for path in CORPUS.glob("*/*") if path.is_file())
MUTANTS = 200
PIECES = [
    *(b'"', b"[", b"]", b"{", b"}", b",", b":", b"null", b"true", b"-1", b"1e999", b"NaN", b'"\\ud800"', b"\xff"),
    *(b"\0", b"\xc0\x80", b"\xed\xa0\x80", b"[" * 200, b'{"a":' * 140, b"18446744073709551616", b"(a+)+", b"\\u0000"),
]
"""What breaks readers of JSON, of UTF-8 and of patterns."""


def mutant(chance: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """A neighbour: some bits, pieces or spans exchanged; the byte that chooses the reader mostly stays."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(1, len(out) + 1)
        what = chance.randrange(5)
        if what == 0 and at < len(out):
            out[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            out[at:at] = chance.choice(PIECES)
        elif what == 2:
            del out[at : at + chance.randint(1, 16)]
        elif what == 3:
            out[at : at + chance.randint(0, 16)] = chance.choice(PIECES)
        else:
            other = chance.choice(others)
            start = chance.randrange(len(other))
            out[at:at] = other[start : start + chance.randint(1, 40)]
    return bytes(out)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_committed_input_and_its_neighbours(seed: Path) -> None:
    target = TARGETS[seed.parent.name]
    data, chance = seed.read_bytes(), random.Random(seed.name)
    others = [path.read_bytes() for path in SEEDS if path.parent == seed.parent]
    target(data)
    for _ in range(MUTANTS):
        target(mutant(chance, data, others))


@pytest.mark.parametrize("target", TARGETS)
def test_random_bytes(target: str) -> None:
    chance = random.Random(target)
    for _ in range(300):
        TARGETS[target](chance.randbytes(chance.randrange(64)))


def test_every_reader_has_an_input() -> None:
    names = {path.name for path in SEEDS}
    assert set(BODIES) <= names
    assert {plain(name) for name in READERS} <= names
