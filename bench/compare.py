#!/usr/bin/env python3
"""forebay beside the fronts of two other projects: one machine, one run, one client, one text, one load, in turn.

    fetch_peers.sh FOLDER                         once: two published wheels and a real tokenizer
    compare.py --peers FOLDER                     the table, and bench/RESULTS.md
    compare.py --peers FOLDER --cells completions:64:10,chat:64:10 --rounds 5 --json --results none

All fronts run during the whole comparison and wait while another one is measured. Round after round each of them gets
the same load, so that a change of the machine's mood meets all of them. The peers are the published binaries, under
mock engines that speak their own links at the same pace as forebay's echo engine. Figures are medians over the rounds;
in brackets stand the smallest and the largest. What is counted as a front's processor time:

    forebay   all its processes, ZeroMQ's thread in the engine's process, and its push and drain on the engine's thread
    sglang    all threads of the server inside the engine's process, and its push and drain on the engine's thread
    vllm-rs   the server's process; what the engine pays for encoding and sending is not counted, in its favour
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _common import (
    HERE,
    SAMPLE,
    Output,
    end_on_sigterm,
    inner,
    machine,
    median,
    shown,
    split_flags,
    spread,
    table,
    versions,
)
from _fronts import Forebay, FrontUnderTest
from _load import APIS, CUMULATIVE, Load, one_round, run_client
from _peers import Sglang, Vllm

from forebay import __version__

CELLS = (
    "completions:1:10,completions:64:10,completions:256:10,completions:1024:40,chat:1:10,chat:64:10,generate:64:10,"
    "logprobs:64:10,completions:1:0,completions:64:0,completions:256:0,completions:1024:0"
)
FIGURES = {
    "server_cpu_us_per_token": "CPU us/token",
    "tokens_per_s": "tokens/s",
    "events_per_token": "events/token",
    "ttft_added_ms.p50": "TTFT added p50 ms",
    "ttft_added_ms.p99": "TTFT added p99 ms",
    "egress_ms.p50": "egress p50 ms",
    "egress_ms.p99": "egress p99 ms",
    "itl_ms.p99": "ITL p99 ms",
    "rss_mib": "RSS MiB",
}
PEERS = ("sglang", "vllm-rs")
FLAT_OUT_TOKENS = 40_000
PACED_SECONDS = 2.0
"""How long a case lasts at least, so that a stream of 1 has enough tokens to be measured."""


def parse(argv: Sequence[str] | None = None) -> Namespace:
    """The options."""
    given, flags = split_flags(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True, help="folder made by fetch_peers.sh")
    parser.add_argument("--only", help=f"comma-separated: which peers, of {', '.join(PEERS)}")
    parser.add_argument("--cells", default=CELLS, help="api:streams:step_ms, comma-separated")
    parser.add_argument("--tokens", type=int, default=256, help="tokens a stream")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--text", type=Path, default=SAMPLE)
    parser.add_argument("--json", action="store_true", help="one line a front and case instead of a table")
    parser.add_argument("--results", default=str(HERE / "RESULTS.md"), help="page to write; none: no page")
    options = parser.parse_args(given)
    options.peers = options.peers.resolve()
    options.flags = flags
    options.only = options.only.split(",") if options.only else list(PEERS)
    if unknown := set(options.only) - set(PEERS):
        parser.error(f"unknown peer {', '.join(sorted(unknown))}")
    try:
        options.loads = [cell(text, options.tokens) for text in options.cells.split(",")]
    except ValueError as error:
        parser.error(f"a cell is api:streams:step_ms, such as completions:64:10 ({error})")
    return options


def cell(text: str, tokens: int) -> Load:
    """The load that `api:streams:step_ms` names. Raises `ValueError`."""
    api, streams, step = text.split(":")
    if api not in APIS or api == CUMULATIVE:
        raise ValueError(f"no such api here: {api}")
    count, step_ms = int(streams), float(step)
    waves = (
        max(1, round(PACED_SECONDS * 1000 / (step_ms * tokens))) if step_ms else -(-FLAT_OUT_TOKENS // (count * tokens))
    )
    return Load(api, count, step_ms, tokens, waves)


def can(front: FrontUnderTest, load: Load) -> bool:
    """vLLM has no /generate."""
    return not (front.name == "vllm-rs" and load.api == "generate")


def start(options: Namespace, stack: ExitStack) -> list[FrontUnderTest]:
    """All fronts, with the same tokenizer and text; they are stopped with the stack."""
    made: list[FrontUnderTest] = []
    if "sglang" in options.only:
        made.append(Sglang(options.peers, options.text, incremental=True))
        stack.callback(made[-1].close)
    if "vllm-rs" in options.only:
        made.append(Vllm(options.peers, options.text))
        stack.callback(made[-1].close)
    flags = ["--incremental-streaming-output", *options.flags]
    made.append(Forebay(str(options.peers / "model"), options.text, flags))
    stack.callback(made[-1].close)
    return made


def run(options: Namespace, fronts: Sequence[FrontUnderTest], text: Path, output: Output) -> None:
    """Case after case, round after round, front after front."""
    for load in options.loads:
        able = [front for front in fronts if can(front, load)]
        for front in able:  # warm, and not measured
            front.set_step(1.0)
            run_client(front, Load(load.api, min(load.streams, 64), 1.0, 16, keep=0), None)
        rounds: dict[str, list[dict[str, Any]]] = {front.name: [] for front in able}
        for _ in range(options.rounds):
            for front in able:
                rounds[front.name].append(one_round(front, load, text))
        for front in able:
            output.add(summary(front.name, load, rounds[front.name]))


def summary(name: str, load: Load, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians and spreads of one front in one case."""
    out: dict[str, Any] = {"front": name, "api": load.api, "streams": load.streams, "step_ms": load.step_ms}
    out |= {"tokens": load.tokens, "waves": load.waves, "rounds": len(rows)}
    for figure in FIGURES:
        values = [inner(row, figure) for row in rows]
        out[figure] = median(values)
        out[f"{figure}_spread"] = spread(values)
    out["by_process"] = {part: median(row["by_process"][part] for row in rows) for part in rows[0]["by_process"]}
    out["text_ok"] = all(row["text_ok"] for row in rows)
    out["errors"] = [row["errors"] or row["error_bodies"] for row in rows if row["errors"] or row["error_bodies"]]
    return out


def with_ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each peer's row with `ratio`: its CPU per token over forebay's in the same case."""
    case = ("api", "streams", "step_ms")
    ours = {tuple(row[name] for name in case): row for row in rows if row["front"] == "forebay"}
    out = []
    for row in rows:
        own = ours.get(tuple(row[name] for name in case))
        cost, theirs = own and own["server_cpu_us_per_token"], row["server_cpu_us_per_token"]
        out.append({**row, "ratio": theirs / cost if cost and theirs else None})
    return out


def figures_table(rows: Sequence[dict[str, Any]]) -> str:
    """The Markdown table of all rows."""
    lines = []
    for row in with_ratios(rows):
        cells = [row["api"], row["streams"], f"{row['step_ms']:g}", row["front"]]
        for figure in FIGURES:
            bounds = row[f"{figure}_spread"]
            text = shown(row[figure])
            cells.append(f"{text} [{shown(bounds[0])}..{shown(bounds[1])}]" if bounds and row["rounds"] > 1 else text)
        lines.append([*cells, row["ratio"], row["text_ok"]])
    return table(("api", "streams", "step ms", "front", *FIGURES.values(), "CPU / forebay's", "text ok"), lines)


def parts_table(rows: Sequence[dict[str, Any]]) -> str:
    """Where forebay's time goes, us a token."""
    mine = [row for row in rows if row["front"] == "forebay"]
    names = list(dict.fromkeys(name for row in mine for name in row["by_process"]))
    lines = [
        [row["api"], row["streams"], f"{row['step_ms']:g}", *(row["by_process"].get(name) for name in names)]
        for row in mine
    ]
    return table(("api", "streams", "step ms", *names), lines)


def peer_versions(peers: Path) -> dict[str, str]:
    """The versions of the wheels that were fetched, from their file names."""
    found = {}
    for wheel in sorted((peers / "dl").glob("*.whl")):
        name, number = wheel.name.split("-")[:2]
        found[name] = number
    return found


def page(options: Namespace, rows: Sequence[dict[str, Any]]) -> str:
    """The text of RESULTS.md."""
    facts = machine()
    software = {"forebay": __version__} | versions(
        "pyzmq", "msgspec", "uvloop", "httptools", "uvicorn", "tokenizers", "numpy"
    )
    peers = peer_versions(options.peers)
    command = shlex.join(["bench/compare.py", *_without_paths(sys.argv[1:])])
    about = (__doc__ or "").partition("All fronts run")[2]
    return f"""# Results

Written by `{command}` on {facts.pop("date")}. Other work on the machine was not kept away: read the spreads.

- machine: {", ".join(f"{name} {value}" for name, value in facts.items())}
- software: {", ".join(f"{name} {number}" for name, number in software.items())}
- peers: {", ".join(f"{name} {number}" for name, number in peers.items())}; tokenizer: Qwen3
- load: {options.tokens} tokens a stream, {options.rounds} rounds, the fronts in turn in each round; step 0 is flat out

All fronts run{about.rstrip()}

`events/token` below 1: the front merged tokens into one event. `TTFT added`: without the engine's own waiting.
`egress`: from the engine's step to the client, where no event holds several tokens. RSS: forebay's is the sum over its
processes, with what they share counted in each; SGLang's contains the mock engine.

{figures_table(rows)}

Where forebay's processor time goes, us a token:

{parts_table(rows)}
"""


def _without_paths(words: Sequence[str]) -> list[str]:
    """The command line without folders of this machine."""
    return ["FOLDER" if word.startswith(("/", "~")) else word for word in words]


def main() -> int:
    """Compare; exit code 1 when a text was wrong somewhere."""
    options = parse()
    end_on_sigterm()
    output = Output(options.json)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fb-"))
        expected = Path(folder, "expected.txt")
        text = options.text.read_text(encoding="utf-8")
        expected.write_text(text * (1 + options.tokens * 8 // len(text)), encoding="utf-8")
        run(options, start(options, stack), expected, output)
    if not options.json:
        print(figures_table(output.rows), parts_table(output.rows), sep="\n\n")
    if options.results != "none":
        Path(options.results).write_text(page(options, output.rows), encoding="utf-8")
    wrong = [row for row in output.rows if not row["text_ok"]]
    for row in wrong:
        print(f"wrong or missing text: {json.dumps(row)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
