"""One run of the load client against a front, and the figures that follow from it and from the engine's log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _cpu
from _common import HERE, quantile
from _fronts import FrontUnderTest

PROMPT = "Hello world, this is a test."
CUMULATIVE = "generate-cumulative"
APIS = ("completions", "chat", "generate", CUMULATIVE, "logprobs")
TOP_LOGPROBS = 5


@dataclass(frozen=True)
class Load:
    """What the client sends."""

    api: str
    streams: int
    step_ms: float
    tokens: int = 256
    waves: int = 1
    """Requests of each stream, one after the other."""
    prompt: str = PROMPT
    ramp_s: float = 0.0
    keep: int = 4
    """Answers whose text is compared."""
    extra: list[str] = field(default_factory=list)
    """More flags for the client."""

    def seconds(self) -> float:
        """When the client gives up: well beyond what the pace needs."""
        return 60.0 + 3 * self.waves * (self.tokens + 2) * self.step_ms / 1000 + self.ramp_s


def client_flags(load: Load) -> list[str]:
    """The client's flags for an API: logprobs are completions that ask for them."""
    shape = {"logprobs": "completions", CUMULATIVE: "generate"}.get(load.api, load.api)
    flags = ["--api", shape]
    if load.api == "logprobs":
        flags += ["--extra", json.dumps({"logprobs": TOP_LOGPROBS})]
    if load.api == CUMULATIVE:
        flags += ["--cumulative"]
    return flags


def run_client(front: FrontUnderTest, load: Load, text: Path | None, dump: str | None = None) -> dict[str, Any]:
    """Run the client in a process of its own; raises `RuntimeError` when it has no result."""
    command = [sys.executable, str(HERE / "load_client.py"), "--port", front.port, "--model", front.model]
    command += ["--concurrency", load.streams, "--requests", load.streams * load.waves, "--max-tokens", load.tokens]
    command += ["--prompt", load.prompt, "--ramp-s", load.ramp_s, "--timeout", load.seconds(), "--keep", load.keep]
    command += ["--rid-field", front.rid_field, "--rid-prefix", f"b{os.getpid()}-{time.monotonic_ns():x}-"]
    for pid in front.pids:
        command += ["--server-pid", pid]
    if dump is not None:
        command += ["--dump", dump]
    if text is not None:
        command += ["--expect-file", text]
    command += [*client_flags(load), *load.extra]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=load.seconds() + 60, check=False
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(f"the load client failed: {done.stderr[-2000:]}") from None
    if "error" in found:
        raise RuntimeError(f"{front.name}: {found['error']}")
    return found


@dataclass
class Joined:
    """Times of a run in milliseconds, from the client's and the engine's clocks, which are one clock."""

    to_engine: list[float] = field(default_factory=list)
    """The last byte sent -> the engine has the request."""
    first_back: list[float] = field(default_factory=list)
    """The step of the first token -> the client has its text."""
    ttft_added: list[float] = field(default_factory=list)
    """The sum of both: time to first token without the engine's own waiting."""
    egress: list[float] = field(default_factory=list)
    """The step of a token -> the client has its event (streams without merged events only)."""


def join(front: FrontUnderTest, dump: str, log: str) -> Joined:
    """Match the client's streams with the engine's log."""
    logged = json.loads(Path(log).read_text())
    requests, steps = logged["requests"], logged["steps"]
    out = Joined()
    for stream in _streams(dump):
        names = [*front.engine_name(stream["rid"]), stream["resp_id"]]
        entry = next((requests[name] for name in names if name in requests), None)
        if entry is None:
            continue
        took, first = entry
        out.to_engine.append((took - stream["send_ns"]) / 1e6)
        if not 0 <= first < len(steps):
            continue
        if stream["first_ns"]:
            out.first_back.append((stream["first_ns"] - steps[first]) / 1e6)
            out.ttft_added.append(out.to_engine[-1] + out.first_back[-1])
        if stream["k"] and stream["k"][-1] == stream["tokens"]:
            pushed = ((at, first + count - 1) for at, count in zip(stream["t"], stream["k"], strict=True))
            out.egress += [(at - steps[step]) / 1e6 for at, step in pushed if step < len(steps)]
    return out


def _streams(dump: str) -> Iterator[dict[str, Any]]:
    with open(dump) as file:
        for line in file:
            yield json.loads(line)


def brief(values: list[float]) -> dict[str, float] | None:
    """p50, p99, the largest, and how many."""
    if not values:
        return None
    return {"p50": quantile(values, 0.5), "p99": quantile(values, 0.99), "max": max(values), "n": len(values)}


def one_round(front: FrontUnderTest, load: Load, text: Path) -> dict[str, Any]:
    """Measure one run: a row as `figures` makes it. The engine must be idle."""
    front.set_step(load.step_ms)
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        dump, log = f"{folder}/dump", f"{folder}/log"
        front.log(log)  # what came before is not of this run
        link = front.link_cpu_s()
        found = run_client(front, load, text, dump)
        link = front.link_cpu_s() - link
        front.log(log)
        joined = join(front, dump, log)
    return figures(front, load, found, link, joined)


def figures(front: FrontUnderTest, load: Load, found: dict[str, Any], link: float, joined: Joined) -> dict[str, Any]:
    """One row: CPU in microseconds a streamed token, times in milliseconds."""
    tokens = found["tokens"] or 1
    parts = {**front.by_process(found["server_threads_cpu_s"]), "link": link}
    matching = found.get("kept_matching", "0/0").split("/")
    whole = not found["errors"] and set(found["status"]) == {"200"}
    whole = whole and found["tokens"] == load.tokens * load.streams * load.waves
    return {
        "api": load.api,
        "streams": load.streams,
        "step_ms": load.step_ms,
        "tokens_per_s": found["tok_per_s"],
        "server_cpu_us_per_token": sum(parts.values()) / tokens * 1e6,
        "by_process": {name: spent / tokens * 1e6 for name, spent in parts.items()},
        "events_per_token": found["events_per_token"],
        "ttft_added_ms": brief(joined.ttft_added),
        "itl_ms": brief_of_client(found["itl_ms"]),
        "rss_mib": rss(front),
        "text_ok": whole and matching[0] == matching[1] != "0",
        "egress_ms": brief(joined.egress),
        "to_engine_ms": brief(joined.to_engine),
        "ttft_ms": brief_of_client(found["ttft_ms"]),
        "client_cpu_us_per_token": found["client_cpu_s_per_mtok"],
        "wall_s": found["wall_s"],
        "tokens": found["tokens"],
        "status": found["status"],
        "errors": found["errors"],
        "error_bodies": found.get("error_bodies", []),
    }


def brief_of_client(percentiles: dict[str, float] | None) -> dict[str, float] | None:
    """The client's percentiles without those that nobody reads."""
    return percentiles and {name: percentiles[name] for name in ("p50", "p99", "max", "n")}


def rss(front: FrontUnderTest) -> float:
    """Resident memory of the front's processes at the end of the run, MiB."""
    return _cpu.rss_mib(front.rss_pids)
