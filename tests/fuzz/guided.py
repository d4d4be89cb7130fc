"""Coverage-guided fuzzing of one target: `python -m tests.fuzz.guided TARGET [SECONDS]` (needs atheris; `make fuzz`).

Starts from the committed corpus. Inputs that reach new code are kept in build/fuzz/TARGET for the next run; one that
fails is written to build/fuzz, and belongs into tests/fuzz/corpus/TARGET together with the repair.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import atheris

ROOT = Path(__file__).parents[2]
MODULES = ("forebay", "forebay_api", "forebay_detokenizer")


def main(target: str, seconds: int = 60) -> None:
    """Fuzz for some seconds; ends the process, with exit code 0 when nothing was found."""
    with atheris.instrument_imports(include=list(MODULES)):
        targets = importlib.import_module("tests.fuzz.targets").TARGETS
    if target not in targets:
        sys.exit(f"targets: {', '.join(targets)}")
    found = ROOT / "build" / "fuzz"
    kept = found / target
    kept.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}", "-max_len=4096", "-rss_limit_mb=2048", "-timeout=10"]
    folders = [str(kept), str(Path(__file__).parent / "corpus" / target)]
    quiet = ["-print_final_stats=1", "-verbosity=1", f"-artifact_prefix={found}/{target}-"]
    atheris.Setup([sys.argv[0], *limits, *quiet, *folders], targets[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "", *map(int, sys.argv[2:3]))
