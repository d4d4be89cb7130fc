#!/usr/bin/env python3
"""What a request costs on its way in: requests a second, processor time and delay, for prompts of all sizes.

    ingress.py                            all cases
    ingress.py --json --cases text_1k,chat_20 --rounds 5
    ingress.py --cases text_1m -- --tokenizers 2       any flag of `forebay serve` behind `--`

Every request asks for one token, without streaming, from the echo engine at full speed. Every prompt is a new one,
save for what a case says. Cases:

    text_1k, text_32k, text_1m   completions of so many bytes of text
    ids_16k          /generate with 16,384 token ids
    chat_1           a chat of one message of 1 KB
    chat_20          the same chat of 20 turns (32 KB) again and again, of which only the last message is new
    chat_20_fresh    such a chat in which every message is new: what the cache of chat_20 saves
    small_beside_1m  1 KB of text, one after the other, while another client keeps sending 1 MB

A row is the median over the rounds; `to_engine_ms` is from the last byte sent until the engine has the request.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from _common import HERE, SAMPLE, Output, end_on_sigterm, middle, split_flags, tied
from _fronts import Forebay, find_tokenizer
from _load import Load, brief, brief_of_client, join, run_client

COLUMNS = (
    "case", "concurrency", "requests", "requests_per_s", "server_cpu_us_per_request", "by_process",
    "to_engine_ms.p50", "to_engine_ms.p99", "answer_ms.p50", "answer_ms.p99", "ok",
)  # fmt: skip
COMPANY_S = 1.5
"""Seconds after which another client is surely sending."""
TURNS = 20
TURN_CHARACTERS = 1600


@dataclass(frozen=True)
class Case:
    """One kind of request, and how many of them."""

    name: str
    api: str
    size: int
    """Bytes of new text, or token ids."""
    requests: int
    concurrency: int = 16
    turns: int = 1
    fresh: bool = False
    """Whether the whole chat is new in each request."""
    beside: int = 0
    """Bytes of the prompts that another client sends at the same time."""


CASES = (
    Case("text_1k", "completions", 1_000, 2000),
    Case("text_32k", "completions", 32_000, 200),
    Case("text_1m", "completions", 1_000_000, 8, 1),
    Case("ids_16k", "generate", 16_384, 400),
    Case("chat_1", "chat", 1_000, 2000),
    Case("chat_20", "chat", TURN_CHARACTERS, 500, turns=TURNS),
    Case("chat_20_fresh", "chat", TURN_CHARACTERS, 100, turns=TURNS, fresh=True),
    Case("small_beside_1m", "completions", 1_000, 300, 1, beside=1_000_000),
)


def parse() -> Namespace:
    """The options; what stands behind `--` are flags of forebay."""
    given, flags = split_flags(sys.argv[1:])
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(names), help="comma-separated")
    parser.add_argument("--concurrency", type=int, help="requests in flight [16; of 1 MB prompts 1]")
    parser.add_argument("--requests", type=int, help="requests a round [by case]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokenizer", help="folder with a tokenizer.json; none: the packaged model's")
    parser.add_argument("--json", action="store_true", help="one line a case instead of a table")
    options = parser.parse_args(given)
    chosen = options.cases.split(",")
    if unknown := set(chosen) - set(names):
        parser.error(f"unknown case {', '.join(sorted(unknown))}: there are {', '.join(names)}")
    options.chosen = [changed(case, options) for case in CASES if case.name in chosen]
    options.flags = flags
    return options


def changed(case: Case, options: Namespace) -> Case:
    """The case with the counts that were asked for."""
    requests, concurrency = options.requests or case.requests, options.concurrency or case.concurrency
    return replace(case, requests=requests, concurrency=min(requests, concurrency))


def words(size: int, seed: int) -> str:
    """About `size` bytes of the sample's words in another order, a third of them cut and joined to new ones.

    So no long piece comes twice, and there are as many different words as in a real text: tokenizers remember words.
    """
    vocabulary = SAMPLE.read_text(encoding="utf-8").split()
    rng = random.Random(seed)

    def word() -> str:
        one = rng.choice(vocabulary)
        if rng.random() < 2 / 3:
            return one
        other = rng.choice(vocabulary)
        return one[: rng.randrange(1, len(one) + 1)] + other[rng.randrange(len(other)) :]

    text = " ".join(word() for _ in range(1 + size // 3))
    return text.encode()[:size].decode("utf-8", "ignore")


def messages(turns: int, seed: int) -> list[dict[str, str]]:
    """The turns of a chat before its last message."""
    roles = ("user", "assistant")
    texts = (words(TURN_CHARACTERS, seed * 1000 + turn) for turn in range(turns - 1))
    return [{"role": roles[turn % 2], "content": text} for turn, text in enumerate(texts)]


def client_flags(case: Case, folder: Path, seed: int) -> list[str]:
    """The load client's flags for one round of a case; the texts go into files."""
    flags = ["--no-stream", "--vary", "--seed", str(seed)]
    if case.api == "generate":
        return [*flags, "--prompt-ids", str(case.size)]
    prompt = folder / "prompt.txt"
    prompt.write_text(words(case.size, seed), encoding="utf-8")
    flags += ["--prompt-file", str(prompt)]
    if case.turns > 1:
        history = folder / "history.json"
        # An odd number of turns before the last message ends with a user: two in a row are no chat.
        history.write_text(json.dumps(messages(case.turns - case.turns % 2 + 1, 0)), encoding="utf-8")
        flags += ["--history-file", str(history), *(["--vary-history"] if case.fresh else [])]
    return flags


@contextlib.contextmanager
def company(case: Case, front: Forebay, folder: Path) -> Iterator[None]:
    """Another client that keeps the tokenizer busy with long prompts, if the case wants one."""
    if not case.beside:
        yield
        return
    prompt = folder / "long.txt"
    prompt.write_text(words(case.beside, 7), encoding="utf-8")
    command = [sys.executable, str(HERE / "load_client.py"), "--port", str(front.port), "--api", "completions"]
    command += ["--model", front.model, "--no-stream", "--vary", "--prompt-file", str(prompt), "--max-tokens", "1"]
    command += ["--requests", "1000", "--concurrency", "1"]
    with subprocess.Popen(tied(command), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as other:
        try:
            time.sleep(COMPANY_S)
            if other.poll() is not None:
                raise RuntimeError("the client that sends the long prompts has ended")
            yield
        finally:
            other.terminate()


def one_round(front: Forebay, case: Case, seed: int) -> dict[str, Any]:
    """Measure one round of a case."""
    with tempfile.TemporaryDirectory(prefix="fb-") as name:
        folder = Path(name)
        flags = client_flags(case, folder, seed)
        waves = -(-case.requests // case.concurrency)
        load = Load(case.api, case.concurrency, 0.0, 1, waves, keep=0, extra=flags)
        dump, log = f"{name}/dump", f"{name}/log"
        front.log(log)
        link = front.link_cpu_s()
        with company(case, front, folder):
            found = run_client(front, load, None, dump)
        link = front.link_cpu_s() - link
        front.log(log)
        joined = join(front, dump, log)
    parts = {**front.by_process(found["server_threads_cpu_s"]), "link": link}
    requests = case.concurrency * waves
    return {
        "case": case.name,
        "concurrency": case.concurrency,
        "requests": requests,
        "requests_per_s": found["req_per_s"],
        # Beside other requests the processes' time is not that of these requests.
        "server_cpu_us_per_request": None if case.beside else sum(parts.values()) / requests * 1e6,
        "by_process": None if case.beside else {part: spent / requests * 1e6 for part, spent in parts.items()},
        "to_engine_ms": brief(joined.to_engine),
        "answer_ms": brief_of_client(found["e2e_ms"]),
        "ok": not found["errors"] and found["status"] == {"200": requests},
        "errors": found["errors"] or found.get("error_bodies", []),
    }


def main() -> int:
    """Run the cases; exit code 1 when a request failed."""
    options = parse()
    end_on_sigterm()
    output = Output(options.json, COLUMNS)
    front = Forebay(find_tokenizer(options.tokenizer), SAMPLE, options.flags)
    try:
        front.set_step(0.0)
        for case in options.chosen:
            small = replace(case, requests=min(case.requests, case.concurrency * 2), beside=0)
            one_round(front, small, 99)  # warm, and not measured
            rows = [one_round(front, case, seed) for seed in range(options.rounds)]
            output.add(middle(rows))
    finally:
        front.close()
    output.close()
    for row in output.rows:
        if not row["ok"]:
            print(f"{row['case']}: {row['errors']}", file=sys.stderr)
    return 0 if all(row["ok"] for row in output.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
