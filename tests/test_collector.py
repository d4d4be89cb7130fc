"""The garbage collector of a process that has started: what it is made of is not looked at again."""

from __future__ import annotations

import subprocess
import sys

SETTLED = """
import gc
from forebay.housekeeping import YOUNG, settle_memory
ring = []
ring.append(ring)
del ring
settle_memory()
assert gc.get_freeze_count() > 1000, gc.get_freeze_count()
assert gc.get_threshold()[0] == YOUNG
assert len(gc.get_objects()) < 1000, len(gc.get_objects())
assert gc.isenabled()
"""


def test_what_is_there_at_the_start_is_out_of_its_sight() -> None:
    subprocess.run([sys.executable, "-c", SETTLED], check=True, timeout=30)
