#!/usr/bin/env python3
"""How long a front takes until it serves: each process and all of it, and how much of that is importing.

    startup.py                                   the packaged model's tokenizer, echo engine
    startup.py --json --rounds 5 -- --tokenizers 2     any flag of `forebay serve` behind `--`

Times in milliseconds, medians over the rounds; the first round is left out (it may read from the disk).

    ready_ms    from the start of `forebay serve` until the process says that it is ready
    own_ms      the same from the start of the process itself
    import_ms   what the imports of its main module take in a fresh interpreter; `imports` has the largest packages
    rss_mib     resident memory when all are ready
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from statistics import median
from typing import Any

import _cpu
from _common import Output, end_on_sigterm, split_flags, tied
from _fronts import find_tokenizer

STARTED = re.compile(r"started (\S+) \(process (\d+)\)")
READY = re.compile(r"supervisor: (\S+) is ready")
ALL = "forebay is ready at"
MODULES = {
    "supervisor": "forebay.serving",
    "api": "forebay_api.worker",
    "tokenizer": "forebay_tokenizer.worker",
    "detokenizer": "forebay_detokenizer.worker",
    "engine": "forebay_engine.process, forebay_engine.echo",
}
COLUMNS = ("process", "ready_ms", "own_ms", "import_ms", "rss_mib", "imports")
START_SECONDS = 120.0
STOP_SECONDS = 30.0
LARGEST = 6


def parse() -> Namespace:
    """The options; what stands behind `--` are flags of forebay."""
    given, flags = split_flags(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="beside the first, which does not count")
    parser.add_argument("--tokenizer", help="folder with a tokenizer.json; none: the packaged model's")
    parser.add_argument("--json", action="store_true", help="one line a process instead of a table")
    options = parser.parse_args(given)
    options.flags = flags
    return options


def one_start(flags: Sequence[str]) -> dict[str, dict[str, float]]:
    """Start a front once, and stop it. Per process: ready_ms, own_ms, rss_mib. Raises `RuntimeError`."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        command = [sys.executable, "-m", "forebay.cli", "serve", "--port", "0", "--run-dir", f"{folder}/run", *flags]
        begin = time.monotonic()
        process = subprocess.Popen(
            tied(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        signal.signal(signal.SIGALRM, lambda *_: process.kill())
        signal.alarm(int(START_SECONDS))
        try:
            return watch(process, begin)
        finally:
            signal.alarm(0)
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def watch(process: subprocess.Popen[str], begin: float) -> dict[str, dict[str, float]]:
    """Read the log until all is ready. The supervisor writes a line when it starts a process, and when one is ready."""
    pids: dict[str, int] = {"supervisor": process.pid}
    started: dict[str, float] = {"supervisor": begin}
    ready: dict[str, float] = {}
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        now = time.monotonic()
        lines.append(line)
        if found := STARTED.search(line):
            started[found[1]], pids[found[1]] = now, int(found[2])
        elif found := READY.search(line):
            ready[found[1]] = now
        elif line.startswith(ALL):
            ready["supervisor"] = now
            break
    else:
        raise RuntimeError(f"the front did not start within {START_SECONDS:g} s:\n{''.join(lines)[-2000:]}")
    out = {}
    for name, at in ready.items():
        own = (at - started[name]) * 1000
        out[name] = {"ready_ms": (at - begin) * 1000, "own_ms": own, "rss_mib": _cpu.rss_mib([pids[name]])}
    return out


def import_times(modules: str) -> tuple[float, dict[str, float]]:
    """Milliseconds that importing these modules takes in a fresh interpreter, and the packages that take most."""
    command = [sys.executable, "-X", "importtime", "-c", f"import {modules}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    packages: dict[str, float] = {}
    for line in done.stderr.splitlines():
        own, _, rest = line.removeprefix("import time:").partition("|")
        if own.strip().isdigit():
            package = rest.partition("|")[2].strip().partition(".")[0]
            packages[package] = packages.get(package, 0.0) + int(own) / 1000
    largest = sorted(packages, key=packages.__getitem__, reverse=True)[:LARGEST]
    return sum(packages.values()), {name: packages[name] for name in largest}


def rows(starts: Sequence[dict[str, dict[str, float]]], rounds: int) -> list[dict[str, Any]]:
    """One row a process, in the order in which they became ready; the last is the supervisor, and so all of it."""
    out = []
    for name in starts[0]:
        role = name.partition("-")[0]
        imports = [import_times(MODULES[role]) for _ in range(rounds)]
        middle = sorted(imports, key=lambda one: one[0])[len(imports) // 2]
        figures = {figure: median(start[name][figure] for start in starts) for figure in starts[0][name]}
        shown = "all (supervisor)" if role == "supervisor" else name
        row = {"process": shown, **figures, "import_ms": middle[0], "imports": middle[1]}
        out.append({column: row[column] for column in COLUMNS})
    return out


def main() -> int:
    """Start it some times, and measure the imports."""
    options = parse()
    end_on_sigterm()
    output = Output(options.json, COLUMNS)
    flags = ["--engine", "echo", "--tokenizer-path", find_tokenizer(options.tokenizer), *options.flags]
    starts = [one_start(flags) for _ in range(options.rounds + 1)][1:]
    for row in rows(starts, options.rounds):
        output.add(row)
    output.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
