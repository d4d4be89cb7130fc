"""Makes the fixtures of the SGLang replay: `python -m tests.helpers.sglang_fixtures STEPS ANSWERS TOKENIZER FOLDER`.

STEPS are the scheduler's steps (`sglang_payloads`), ANSWERS what SGLang's own front answered (`sglang_record`),
TOKENIZER the model's tokenizer.json. Hidden vectors are cut to their first values on both sides: the files stay small.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.helpers.sglang_cases import all_cases
from tests.helpers.sglang_compare import answer

WIDTH, KEPT = 576, 16
"""Values of a hidden vector, and those that the fixtures keep."""
DIGITS = 6
LEFT_OUT = (
    "generate-ids-long",
    "generate-long",
    "generate-logprob-long",
    "generate-logprob-beyond",
    "generate-n",
    "generate-prompt-ids",
)
"""Too long, refused by SGLang's front, or answered before the engine is asked."""


def cases() -> dict[str, dict[str, Any]]:
    """The bodies of the cases that are replayed, by name."""
    return {
        case["name"]: case["body"]
        for case in all_cases()
        if case["name"].startswith("generate-") and case["name"].removesuffix("-stream") not in LEFT_OUT
    }


def items_of(recorded: dict[str, Any]) -> list[Any]:
    """The answer objects of a recorded answer of `/generate`, one a prompt; of a stream the last of each."""
    body = answer(recorded)["body"]
    items = body.get("items", [body]) if isinstance(body, dict) else body
    return [_cut_answer(item) for item in items]


def _cut_answer(item: dict[str, Any]) -> dict[str, Any]:
    item = {key: value for key, value in item.items() if key != "index"}
    meta = item["meta_info"]
    if "hidden_states" in meta:
        meta["hidden_states"] = [
            [value for at in range(0, len(row), WIDTH) for value in row[at : at + KEPT]]
            for row in meta["hidden_states"]
        ]
    return item


def steps_of(path: Path, names: dict[str, Any]) -> list[dict[str, Any]]:
    """The recorded steps with the rows of the replayed cases only; `name.0` is the first request of a name."""
    seen: dict[str, dict[str, str]] = defaultdict(dict)
    out = []
    for line in path.read_text(encoding="utf-8").splitlines():
        step = json.loads(line)
        rows = [row for row, rid in enumerate(step["rids"]) if _case(rid) in names]
        if rows:
            picked = {name: column and [column[row] for row in rows] for name, column in step.items()}
            picked["rids"] = [_renamed(rid, seen) for rid in picked["rids"]]
            if picked["output_hidden_states"]:
                picked["output_hidden_states"] = [_cut_states(cell) for cell in picked["output_hidden_states"]]
            out.append(picked)
    return out


def _case(rid: str) -> str:
    """The case that a wire id belongs to: `generate-batch_1.0123` -> `generate-batch`."""
    return rid.rpartition(".")[0].partition("_")[0].removesuffix("-first").removesuffix("-second")


def _renamed(rid: str, seen: dict[str, dict[str, str]]) -> str:
    public = rid.rpartition(".")[0]
    known = seen[public]
    return known.setdefault(rid, f"{public}.{len(known)}")


def _cut_states(states: list[Any] | None) -> Any:
    return states and [[v[:KEPT] for v in state] if isinstance(state[0], list) else state[:KEPT] for state in states]


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, list):
        return [_short(item) for item in value]
    return {key: _short(item) for key, item in value.items()} if isinstance(value, dict) else value


def _ids(value: Any) -> set[int]:
    if isinstance(value, dict):
        return set().union(*map(_ids, value.values()))
    if isinstance(value, list):
        return set().union(*map(_ids, value))
    return {value} if isinstance(value, int) and not isinstance(value, bool) else set()


def tokens_of(path: Path, steps: list[dict[str, Any]]) -> dict[str, int]:
    """The tokens of the vocabulary that the steps could name."""
    used = _ids(steps)
    model = json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
    return {token: number for token, number in model.items() if number in used}


def main() -> None:
    steps_path, answers_path, tokenizer, folder = map(Path, sys.argv[1:5])
    answers, names = json.loads(answers_path.read_text(encoding="utf-8")), cases()
    steps = steps_of(steps_path, names)
    content = {
        "steps.json": steps,
        "answers.json": {name: items_of(answers[name]) for name in names},
        "tokens.json": tokens_of(tokenizer, steps),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for file, value in content.items():
        text = json.dumps(_short(value), ensure_ascii=False, separators=(",", ":"))
        (folder / file).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
