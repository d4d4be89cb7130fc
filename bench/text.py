"""What text costs: ids to text against the library's DecodeStream, prompts to ids, a small prompt beside a big one, and
the memory of both cores. `--tokenizers DIR` names a folder of tokenizers (each a folder with a tokenizer.json, as
`make test-tokenizers` fetches them); without it the packaged model's tokenizer is used or, where that cannot be had, a
small one trained on the sample text.

    make bench BENCH=text ARGS='--tokenizers ~/.cache/forebay/tokenizers --only qwen3,llama3'

Rows, by `case`:
  out N        ns_per_token of thread time for N tokens a step (4,096 streams): frame in, text, frame out;
               decodestream_ns, ratio_to_decodestream on the same ids in the same run
  in SIZE      ms of wall time from a work item to its admission: a fresh text; `turn` a 20-turn chat with one new turn
  short chat   ms of a chat with one short new question, one at a time
  beside       small_beside_large_ms: the slowest but one in a thousand of many 1 KB prompts, one by one, beside
               1 MB prompts; max_ms, the very slowest, shows the other load of the machine, too
  rss          rss_mib of a tokenizer's and a detokenizer's process without sockets, after loading
`encoder` is `tokenizers`, or `fastokens` where that is installed and agrees.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import psutil
from _common import SAMPLE, Output, quantile
from _fronts import find_tokenizer
from _text_in import Prompts, text
from _text_out import compare
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from forebay_detokenizer.service import load_tables

COLUMNS = (
    "case", "tokenizer", "encoder", "ns_per_token", "decodestream_ns", "ratio_to_decodestream", "ms",
    "small_beside_large_ms", "max_ms", "p50_ms", "rss_mib",
)  # fmt: skip
SIZES = {"1 KB": 1_000, "32 KB": 32_000, "1 MB": 1_000_000}
MIB = 1 << 20


def arguments() -> Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizers", type=Path, help="folder of tokenizers; none: the packaged model's")
    parser.add_argument("--only", help="comma-separated names of folders there")
    parser.add_argument("--cases", default="out,in,beside,rss", help="comma-separated")
    parser.add_argument("--rows", type=int, default=4096, help="streams of the out cases")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of the beside case")
    parser.add_argument("--json", action="store_true", help="one line a case instead of a table")
    parser.add_argument("--rss-of", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def trained(folder: Path) -> Path:
    """A byte-level tokenizer of 2,000 entries for the sample text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=["<|turn|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train([str(SAMPLE)], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def folders(options: Namespace, made: Path) -> list[Path]:
    """The tokenizers to measure; `made` is an empty folder for one of our own."""
    if options.tokenizers is None:
        try:
            return [Path(find_tokenizer(None))]
        except subprocess.CalledProcessError:
            return [trained(made)]
    wanted = set(options.only.split(",")) if options.only else None
    found = sorted(path.parent for path in options.tokenizers.glob("*/tokenizer.json"))
    found = [folder for folder in found if wanted is None or folder.name in wanted]
    if not found:
        raise SystemExit(f"no tokenizer to measure in {options.tokenizers}")
    return found


def out_cases(folder: Path, rows: int) -> Iterator[dict[str, Any]]:
    """Ids to text."""
    tokenizer, tables = Tokenizer.from_file(str(folder / "tokenizer.json")), load_tables(str(folder))
    ids = tokenizer.encode(text(60_000, 1), add_special_tokens=False).ids
    for each in (1, 16):
        our, their = compare(tokenizer, tables, ids, rows, each)
        yield {
            "case": f"out {each}", "ns_per_token": our, "decodestream_ns": their, "ratio_to_decodestream": their / our,
        }  # fmt: skip


def in_cases(prompts: Prompts, cases: set[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Texts to ids."""
    if "in" in cases:
        prompts.fresh(1_000, 3)
        for name, size in SIZES.items():
            rounds = 3 if size > 100_000 else 15
            yield {"case": f"in {name}", "ms": prompts.fresh(size, rounds)}
            yield {"case": f"in {name} turn", "ms": prompts.one_new_turn(size, rounds)}
        yield {"case": "short chat", "ms": prompts.short_chat(300)}
    if "beside" in cases:
        spent = prompts.beside(1_000_000, seconds)
        yield {
            "case": "beside", "small_beside_large_ms": quantile(spent, 0.999), "max_ms": max(spent),
            "p50_ms": quantile(spent, 0.5),
        }  # fmt: skip


def rss_cases(folder: Path) -> Iterator[dict[str, Any]]:
    """Memory, each core in a process of its own."""
    for core in ("tokenizer", "tokenizer off", "detokenizer"):
        command = [sys.executable, __file__, "--rss-of", core, str(folder)]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        encoder = {"tokenizer": "auto", "tokenizer off": "tokenizers"}.get(core, "-")
        yield {"case": f"rss {core.split()[0]}", "encoder": encoder, "rss_mib": float(done.stdout)}


def print_rss(core: str, folder: str) -> None:
    """Load one core, and print the memory of this process in MiB."""
    with tempfile.TemporaryDirectory() as made:
        kept: object = (
            load_tables(folder)
            if core == "detokenizer"
            else Prompts(Path(folder), core == "tokenizer", Path(made) / "chat.jinja")
        )
    print(psutil.Process().memory_info().rss / MIB)
    if isinstance(kept, Prompts):
        kept.stop()


def measure(folder: Path, options: Namespace, output: Output) -> None:
    """All cases of one tokenizer."""
    cases = set(options.cases.split(","))
    name = folder.name
    if "out" in cases:
        for row in out_cases(folder, options.rows):
            output.add({"tokenizer": name, **row})
    with tempfile.TemporaryDirectory() as made:
        for fast in (False, True) if cases & {"in", "beside"} else ():
            prompts = Prompts(folder, fast, Path(made) / "chat.jinja")
            if prompts.fast == fast:
                for row in in_cases(prompts, cases, options.seconds):
                    output.add({"tokenizer": name, "encoder": "fastokens" if fast else "tokenizers", **row})
            prompts.stop()
    if "rss" in cases:
        for row in rss_cases(folder):
            output.add({"tokenizer": name, **row})


def main() -> int:
    """Measure, and print."""
    options = arguments()
    if options.rss_of:
        print_rss(*options.rss_of)
        return 0
    logging.disable(logging.INFO)
    output = Output(options.json, COLUMNS)
    try:
        with tempfile.TemporaryDirectory(prefix="trained-") as made:
            for folder in folders(options, Path(made)):
                measure(folder, options, output)
    finally:
        output.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
