"""docs/wire.md says what the code does: kinds and their numbers, families and their order, the version."""

from __future__ import annotations

import re
from pathlib import Path

from forebay.wire import VERSION, Kind
from forebay.wire.columns import FAMILIES, SHAPES

PAGE = (Path(__file__).parents[1] / "docs" / "wire.md").read_text()


def test_the_page_has_every_kind_with_its_number() -> None:
    found = {name: int(number) for name, number in re.findall(r"^\| ([A-Z]+) \| (\d+) \|", PAGE, re.MULTILINE)}
    assert found == {kind.name: int(kind) for kind in Kind}


def test_the_page_has_the_families_in_their_order() -> None:
    forms = ("flat", "ragged", "hidden")
    found = re.findall(r"^\| (\d) \| `(\w+)` \| (\w+) \|", PAGE, re.MULTILINE)
    assert found == [
        (str(n), name, forms[shape]) for n, (name, shape) in enumerate(zip(FAMILIES, SHAPES, strict=True), 1)
    ]


def test_the_page_names_the_version() -> None:
    assert f"Version {VERSION}." in PAGE
