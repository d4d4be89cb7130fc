"""What all benchmarks share: lines for programs, tables for people, medians, and facts about the machine."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import signal
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.helpers.tied import tied as tied  # for all that start a process: it ends with the benchmark

HERE = Path(__file__).resolve().parent
SAMPLE = HERE / "sample.txt"


class Output:
    """Takes one row a case: prints it as a JSON line at once, or keeps it for a table at the end."""

    def __init__(self, as_json: bool, columns: Sequence[str] = ()) -> None:
        self.as_json = as_json
        self.columns = columns
        """Columns of the table, dotted for inner values (`ttft_ms.p50`); none: all of the first row."""
        self.rows: list[dict[str, Any]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """Take one case."""
        self.rows.append(dict(row))
        if self.as_json:
            print(json.dumps(row), flush=True)
        elif sys.stderr.isatty():
            print(f"  {len(self.rows)} cases done", end="\r", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Print the table, if the rows were not printed already."""
        if self.rows and not self.as_json:
            columns = self.columns or list(self.rows[0])
            print(table(columns, ([inner(row, name) for name in columns] for row in self.rows)))


def inner(row: Mapping[str, Any], dotted: str) -> Any:
    """`row["a"]["b"]` for `a.b`; None when there is no such value."""
    value: Any = row
    for name in dotted.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def shown(value: Any) -> str:
    """A value in a cell: four figures of a number, and never 0 for something that is not."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, Mapping):
        return " ".join(f"{name} {shown(part)}" for name, part in value.items())
    return str(value)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table, padded so that it reads well in a terminal, too."""
    cells = [[str(name) for name in columns], *([shown(value) for value in row] for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
    lines = [
        "| " + " | ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|", *lines[1:]])


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which `part` (0 to 1) of them lie; NaN for none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(part * (len(ordered) - 1))))]


def median(values: Iterable[float | None]) -> float | None:
    """The median of what is there; None for nothing."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def middle(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row of medians: of numbers, and of the numbers in maps; a truth must hold in every round."""
    out: dict[str, Any] = {}
    for name, value in rows[0].items():
        values = [row[name] for row in rows]
        if isinstance(value, bool):
            out[name] = all(values)
        elif isinstance(value, (int, float)) and all(isinstance(one, (int, float)) for one in values):
            out[name] = statistics.median(values)
        elif isinstance(value, dict) and all(isinstance(one, dict) for one in values):
            out[name] = middle(values) if all(one.keys() == value.keys() for one in values) else value
        else:
            out[name] = value
    return out


def spread(values: Iterable[float | None]) -> list[float] | None:
    """The smallest and the largest of what is there."""
    there = [value for value in values if value is not None]
    return [min(there), max(there)] if there else None


def numbers(text: str) -> list[int]:
    """`1,64,256` as numbers."""
    return [int(part) for part in text.split(",") if part]


def floats(text: str) -> list[float]:
    """`0,10.5` as numbers."""
    return [float(part) for part in text.split(",") if part]


def end_on_sigterm() -> None:
    """Let SIGTERM end the script as an error does, so that the processes that it has started are ended, too."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def split_flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A script's own words, and forebay's flags behind `--`."""
    given = list(words)
    at = given.index("--") if "--" in given else len(given)
    return given[:at], given[at + 1 :]


def machine() -> dict[str, Any]:
    """What a reader of figures must know of the machine: processor, allowed cores, memory, kernel, Python, date."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = next((line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")), "?")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "date": datetime.date.today().isoformat(),
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def versions(*packages: str) -> dict[str, str]:
    """The installed versions of packages; those that are not installed are left out."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
