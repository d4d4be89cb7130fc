"""Does a front under a mixed load stay as it is? Memory, file descriptors, tables and texts, watched for minutes.

    python bench/soak.py --minutes 20

Every stream's text is checked against the echo engine's own rule. Prints one line a sample and a verdict; exit code 1
when something grew, was wrong, hung, or stayed behind.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.helpers.chaos import depths, nothing_left
from tests.helpers.front import Front, running, wait_for
from tests.helpers.load import Load
from tests.helpers.models import make_tokenizer

GROWTH_MB = 24.0
"""What a process may grow after its first fifth of the time: pools and caches fill until then."""
ODD: list[tuple[dict[str, Any] | bytes, int]] = [
    ({"prompt": "x" * 200_000, "max_tokens": 2}, 200),
    ({"prompt": "hello", "max_tokens": 3, "n": 16, "logprobs": 3}, 200),
    ({"prompt": "hello", "max_tokens": 40, "stop": ["never", "ever"], "n": 2}, 200),
    ({"prompt": "hello", "max_tokens": -1}, 400),
    ({"prompt": "hello", "n": 5_000_000}, 400),
    (b'{"prompt": ', 400),
    (b"[" * 100_000, 400),
]
"""Requests that are not like the others, and their status."""


def sample(front: Front) -> dict[str, tuple[float, int]]:
    """MiB and file descriptors of each process."""
    found = {}
    for name, pid in front.pids().items():
        process = psutil.Process(pid)
        found[name] = (process.memory_info().rss / (1 << 20), process.num_fds())
    return found


def odd_clients(front: Front, stop: threading.Event, wrong: list[str]) -> None:
    """Unusual requests, refused ones, and clients that leave in the middle."""
    endless = {"prompt": "hello", "max_tokens": 100_000, "stream": True}
    while not stop.is_set():
        with front.client() as client:
            for body, status in ODD:
                content = {"content": body} if isinstance(body, bytes) else {"json": body}
                headers = {"content-type": "application/json"}
                answer = client.post("/v1/completions", headers=headers, **content)
                if answer.status_code != status:
                    wrong.append(f"{answer.status_code} instead of {status}: {str(body)[:60]}")
            with client.stream("POST", "/v1/completions", json=endless) as stream:
                next(stream.iter_bytes(), None)
        with front.client() as client:
            paths = ("/health", "/metrics", "/v1/models")
            wrong += [path for path in paths if client.get(path).status_code != httpx.codes.OK]
        stop.wait(0.5)


def watch(front: Front, folder: Path, minutes: float, clients: int) -> list[str]:
    """Run the load and look; what is wrong at the end."""
    wrong: list[str] = []
    stop = threading.Event()
    odd = threading.Thread(target=odd_clients, args=(front, stop, wrong))
    began, seconds = time.monotonic(), minutes * 60
    first: dict[str, tuple[float, int]] = {}
    with Load(front.url, folder, clients=clients, seed=7) as load:
        odd.start()
        while (spent := time.monotonic() - began) < seconds:
            time.sleep(min(15.0, seconds / 10))
            now = sample(front)
            if not first and spent > seconds / 5:
                first = now
            sizes = ", ".join(f"{name} {rss:.0f} MiB/{fds}" for name, (rss, fds) in sorted(now.items()))
            print(f"{time.monotonic() - began:6.0f} s  {dict(load.counts())}  {sizes}", flush=True)
        last = sample(front)
        stop.set()
        odd.join()
    wrong += [f"{count} requests were {kind}" for kind, count in load.counts().items() if kind != "whole"]
    for name, (rss, fds) in last.items():
        before_rss, before_fds = first[name]
        if rss - before_rss > GROWTH_MB:
            wrong.append(f"{name} grew from {before_rss:.0f} to {rss:.0f} MiB")
        if fds - before_fds > clients:
            wrong.append(f"{name} has {fds} file descriptors, {before_fds} before")
    return wrong


def main() -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=48)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = make_tokenizer(Path(place) / "model")
        flags = ["--engine", "echo", "--tokenizer-path", str(folder), "--echo-step-ms", "10", "--apis", "2"]
        # What the link keeps for a detokenizer that dies is filled before the first sample that counts.
        flags += ["--tokenizers", "2", "--detokenizers", "2", "--resume-kept-bytes", "8MiB"]
        with running(Path(place), *flags) as front:
            wrong = watch(front, folder, args.minutes, args.clients)
            try:
                wait_for(lambda: nothing_left(front), 10, "empty tables")
            except AssertionError:
                wrong.append(f"the tables are not empty: {depths(front)}")
    print(
        "\n".join(["SOAK FAILED", *wrong]) if wrong else f"SOAK OK: {args.minutes:g} minutes, nothing grew or was lost"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
