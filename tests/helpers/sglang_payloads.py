"""Writes down what SGLang's scheduler hands to the adapter, for the fixtures that CI replays.

`python -m tests.helpers.sglang_payloads FOLDER` makes a folder that, on PYTHONPATH of an SGLang with FOREBAY=1, is a
second plug-in: it writes each step as a line of JSON to the file that SGLANG_STEPS names. `sglang_fixtures` picks.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from forebay_engine.adapters.sglang_outputs import Outputs

COLUMNS = (
    "rids",
    "finished_reasons",
    "output_ids",
    "prompt_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "weight_versions",
    "output_hidden_states",
    *(
        f"{kind}_{family}_logprobs_{part}"
        for kind in ("output", "input")
        for family in ("token", "top", "token_ids")
        for part in ("val", "idx")
    ),
)
"""The columns of a `BatchTokenIDOutput` that the adapter reads."""


def register() -> None:
    """The plug-in: every step is written before it is translated."""
    path = os.environ.get("SGLANG_STEPS")
    if path is None:
        return
    file = open(path, "a", encoding="utf-8")  # noqa: SIM115  (closed with the scheduler's process)
    translate = Outputs.batch

    def batch(self: Outputs, payload: Any, *rest: Any) -> Any:
        step = {name: getattr(payload, name) for name in COLUMNS}
        file.write(json.dumps(step, default=_plain) + "\n")
        file.flush()
        return translate(self, payload, *rest)

    Outputs.batch = batch  # type: ignore[assignment,method-assign]


def _plain(value: Any) -> Any:
    """Spans of weight versions as maps, arrays as lists."""
    return msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else list(value)


def main() -> None:
    info = Path(sys.argv[1]) / "sglang_steps-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-steps\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nsteps = tests.helpers.sglang_payloads:register\n")


if __name__ == "__main__":
    main()
