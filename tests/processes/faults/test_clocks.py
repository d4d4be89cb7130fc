"""A jump of the wall clock moves no deadline: only stamps that people read come from it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
STAMPS = {
    "services/forebay_api/app.py": "when the model came, in /v1/models",
    "services/forebay_api/calls.py": "`created` of an answer",
    "services/forebay_api/routes/loads.py": "the time of a report",
    "services/forebay_tokenizer/sandbox.py": "a chat template's date of today",
}


def test_no_deadline_comes_from_the_wall_clock() -> None:
    readers = {
        str(path.relative_to(ROOT))
        for folder in ("common", "services")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"\btime\.time\(|datetime\.now\(|time\.localtime\(", path.read_text())
    }
    assert readers == set(STAMPS)
