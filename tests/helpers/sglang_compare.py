"""Lists every difference between two recordings: `python -m tests.helpers.sglang_compare SGLANG.json FOREBAY.json`.

Streams are put together first, so that a difference is one of content and not of how steps fell into events. What
differs by nature (ids that were not given, times) is left out; numbers may differ by what float32 sums differ by.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

TOLERANCE = 2e-3
VOLATILE = {"created", "e2e_latency", "cached_tokens"}
"""Times, and what depends on the requests before."""
MISSING = "<missing>"


def merged(frames: list[Any]) -> Any:
    """One answer for the events of a stream: the last event of each index of `/generate`, or joined deltas."""
    events = [frame for frame in frames if isinstance(frame, dict)]
    ends = frames[-1:] == ["[DONE]"] and frames.count("[DONE]") == 1
    if any("choices" in event for event in events):
        return {"done": ends, **_joined(events)}
    last = {event.get("index", 0): event for event in events}
    return {"done": ends, "items": [last[index] for index in sorted(last)]}


def _joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    choices: dict[int, dict[str, Any]] = defaultdict(lambda: defaultdict(str))
    out: dict[str, Any] = {}
    for event in events:
        out.update({key: event[key] for key in ("object", "model", "error") if key in event})
        if event.get("usage"):
            out["usage"] = event["usage"]
        for choice in event.get("choices", ()):
            _add(choices[choice["index"]], choice)
    out["choices"] = [dict(choices[index]) for index in sorted(choices)]
    return out


def _add(into: dict[str, Any], choice: dict[str, Any]) -> None:
    delta = choice.get("delta", choice)
    into["text"] += delta.get("content") or delta.get("text") or ""
    if delta.get("role"):
        into["role"] = delta["role"]
    for key in ("finish_reason", "matched_stop", "hidden_states"):
        if choice.get(key) is not None:
            into[key] = choice[key]
    for name, part in (choice.get("logprobs") or {}).items():
        if isinstance(part, list):
            logprobs = into["logprobs"] or {}
            into["logprobs"] = {**logprobs, name: logprobs.get(name, []) + part}


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(place, SGLang's value, forebay's value) of everything that differs."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            if key not in VOLATILE and not (key in ("id", "request_id") and _random(ours.get(key), theirs.get(key))):
                yield from differences(ours.get(key, MISSING), theirs.get(key, MISSING), f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for at, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(left, right, f"{path}[{at}]")
    elif not _same(ours, theirs):
        yield path, ours, theirs


def _random(left: Any, right: Any) -> bool:
    """Ids that each front makes up for itself."""
    return isinstance(left, str) and isinstance(right, str) and len(left) >= 32 and len(right) >= 32


def _same(left: Any, right: Any) -> bool:
    numbers = (int, float)
    if isinstance(left, numbers) and isinstance(right, numbers) and not isinstance(left, bool):
        return bool(abs(left - right) <= TOLERANCE * max(1.0, abs(left)))
    return bool(left == right)


def answer(recorded: dict[str, Any]) -> dict[str, Any]:
    """A recorded answer in the form that is compared."""
    if "frames" in recorded:
        return {"status": recorded["status"], "body": merged(recorded["frames"])}
    return {"status": recorded["status"], "body": recorded.get("json", recorded.get("text"))}


def report(sglang: dict[str, Any], forebay: dict[str, Any]) -> Iterator[tuple[str, list[tuple[str, Any, Any]]]]:
    """Every case of both recordings with its differences."""
    for name in sglang:
        if name in forebay:
            yield name, list(differences(answer(sglang[name]), answer(forebay[name])))


def main() -> None:
    recordings = []
    for path in sys.argv[1:3]:
        with open(path, encoding="utf-8") as file:
            recordings.append(json.load(file))
    found = list(report(recordings[0], recordings[1]))
    for name, unequal in found:
        for place, left, right in unequal:
            print(f"{name}\t{place}\t{str(left)[:160]}\t{str(right)[:160]}")
    equal = sum(not unequal for _, unequal in found)
    print(f"{len(found)} requests compared, {equal} equal, {len(found) - equal} differ", file=sys.stderr)


if __name__ == "__main__":
    main()
