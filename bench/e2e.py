#!/usr/bin/env python3
"""What a streamed token costs, end to end: a real front, the echo engine, the load client in a process of its own.

    e2e.py                                                  completions, 64 streams, 10 ms steps
    e2e.py --json --api completions --streams 64 --step-ms 10
    e2e.py --matrix                                         all of it: a quarter of an hour
    e2e.py --streams 256 -- --stream-interval 4             any flag of `forebay serve` behind `--`

A row is one case; its figures are medians over the rounds (`--each`: one row a round). Processor times come from
schedstat, so they are exact to the nanosecond, and are given in microseconds a streamed token:

    server_cpu_us_per_token   api + tokenizer + detokenizer + supervisor, ZeroMQ's threads in the engine's process, and
                              the engine's own thread inside push_generation and drain (`link`); by_process has each
    ttft_added_ms             time to first token without the engine's part: (last request byte sent -> the engine has
                              the request) + (step of the first token -> the client has its text)
    egress_ms                 step of a token -> the client has its event; only where no event holds several tokens
    itl_ms                    gaps between the events of a stream as the client sees them (events of one read: 0)
    rss_mib                   resident memory of the services after the run, what they share counted in each
    text_ok                   every answer is complete, and the texts compared are the source text, letter by letter
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from _common import SAMPLE, Output, end_on_sigterm, floats, middle, numbers, split_flags
from _fronts import Forebay, find_tokenizer
from _load import APIS, CUMULATIVE, Load, one_round, run_client

KEYS = (
    "api", "streams", "step_ms", "tokens_per_s", "server_cpu_us_per_token", "by_process", "events_per_token",
    "ttft_added_ms", "itl_ms", "rss_mib", "text_ok",
)  # fmt: skip
COLUMNS = (
    "api", "streams", "step_ms", "tokens_per_s", "server_cpu_us_per_token", "by_process", "events_per_token",
    "ttft_added_ms.p50", "ttft_added_ms.p99", "egress_ms.p50", "egress_ms.p99", "itl_ms.p50", "itl_ms.p99", "rss_mib",
    "text_ok",
)  # fmt: skip
MATRIX_STREAMS = [1, 64, 256, 1024]
MATRIX_STEPS = [10.0, 40.0, 0.0]
FLAT_OUT_TOKENS = 20_000
"""Tokens of a case without pace at least, so that it lasts long enough to be measured."""


def parse(argv: Sequence[str] | None = None) -> Namespace:
    """The options; what stands behind `--` are flags of forebay."""
    given, flags = split_flags(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--api", default="completions", help=f"comma-separated, of {', '.join(APIS)}")
    parser.add_argument("--streams", type=numbers, default=[64], help="comma-separated")
    parser.add_argument("--step-ms", type=floats, default=[10.0], help="comma-separated; 0: as fast as it goes")
    parser.add_argument("--tokens", type=int, default=256, help="tokens a stream")
    parser.add_argument("--waves", type=int, default=1, help="requests of a stream, one after the other")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ramp-s", type=float, default=0.0, help="spread the starts over this time")
    parser.add_argument("--text", type=Path, default=SAMPLE, help="what the engine answers")
    parser.add_argument("--tokenizer", help="folder with a tokenizer.json; none: the packaged model's")
    parser.add_argument("--matrix", action="store_true", help="all APIs, stream counts and steps")
    parser.add_argument("--each", action="store_true", help="a row for each round, with all that was measured")
    parser.add_argument("--json", action="store_true", help="one line a case instead of a table")
    options = parser.parse_args(given)
    options.apis = list(APIS) if options.matrix else options.api.split(",")
    if unknown := set(options.apis) - set(APIS):
        parser.error(f"unknown api {', '.join(sorted(unknown))}: there are {', '.join(APIS)}")
    if options.matrix:
        options.streams, options.step_ms = MATRIX_STREAMS, MATRIX_STEPS
    options.flags = flags
    return options


def loads(options: Namespace, apis: Sequence[str]) -> Iterator[Load]:
    """The cases, in order."""
    for api in apis:
        for step in options.step_ms:
            for streams in options.streams:
                waves = options.waves
                if step == 0:
                    waves = max(waves, -(-FLAT_OUT_TOKENS // (streams * options.tokens)))
                yield Load(api, streams, step, options.tokens, waves, ramp_s=options.ramp_s if step else 0.0)


def measure(front: Forebay, load: Load, text: Path, options: Namespace, output: Output) -> None:
    """All rounds of one case, after a short run that is not measured."""
    front.set_step(min(load.step_ms, 1.0))
    run_client(front, Load(load.api, min(load.streams, 32), 1.0, 8, keep=0), None)
    rows = []
    for number in range(options.rounds):
        rows.append(one_round(front, load, text))
        if options.each:
            output.add({"round": number, **rows[-1]})
        for wrong in ("errors", "error_bodies"):
            if rows[-1][wrong]:
                print(f"{load.api} {load.streams} {load.step_ms}: {wrong} {rows[-1][wrong]}", file=sys.stderr)
    if not options.each:
        row = middle(rows)
        output.add({name: row[name] for name in KEYS} if options.json else row)


def main() -> int:
    """Run the cases; exit code 1 when a text was wrong."""
    options = parse()
    end_on_sigterm()
    output = Output(options.json, COLUMNS if not options.each else ("round", *COLUMNS))
    tokenizer = find_tokenizer(options.tokenizer)
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        expected = Path(folder, "expected.txt")
        text = options.text.read_text(encoding="utf-8")
        expected.write_text(text * (1 + options.tokens * 8 // len(text)), encoding="utf-8")
        # Cumulative events are a setting of the server.
        groups = (
            [api for api in options.apis if api != CUMULATIVE],
            [api for api in options.apis if api == CUMULATIVE],
        )
        for apis, flags in zip(groups, (["--incremental-streaming-output"], []), strict=True):
            if not apis:
                continue
            front = Forebay(tokenizer, options.text, [*flags, *options.flags])
            try:
                for load in loads(options, apis):
                    measure(front, load, expected, options, output)
            finally:
                front.close()
    output.close()
    return 0 if all(row["text_ok"] for row in output.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
