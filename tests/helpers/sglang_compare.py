"""Lists every difference between two recordings: `python -m tests.helpers.sglang_compare SGLANG.json FOREBAY.json`.

Streams are put together first, so that a difference is one of content and not of how steps fell into events. What
differs by nature (ids that were not given, times) is left out; numbers may differ by what float32 sums differ by.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

TOLERANCE = 2e-3
VOLATILE = {"created", "e2e_latency", "cached_tokens"}
"""Times, and what depends on the requests before."""
MISSING = "<missing>"


class Rule(NamedTuple):
    """A difference that is meant: of which cases (a pattern), where (a pattern), and its name in docs/sglang.md."""

    cases: str
    place: str
    name: str
    added: bool = False
    """Only for what SGLang's front leaves out."""


RULES = (
    Rule("generate-n", "", "samples"),
    Rule("bad-(top-logprobs|token-ids-nested|processor|chat-top-logprobs)$", "", "strict"),
    Rule("(bad-stream-late|generate-logprob-beyond-stream)$", "", "early status"),
    Rule("abort-(stream|whole|all)$", "", "aborts"),
    Rule("(bad-|generate-n)", r"\.message$", "wording"),
    Rule(
        "(bad-|generate-logprob-beyond$)", r"\.error\.object$|\.(object|message|param|type|code|error)$", "error body"
    ),
    Rule("generate-stop-", r"\.weight_versions", "stops"),
    Rule("(chat|completion)-stop", r"\.metadata", "stops"),
    Rule("generate-stop-min", r"\.(text|output_ids|completion_tokens)$", "stops"),
    Rule("generate-hidden", r"\.hidden_states\[0\]$", "prompt rows"),
    Rule("chat-logprobs-stream", r"\.logprobs\.content$", "last logprob"),
    Rule("completion-", r"\.text_offset\[\d+\]$", "offsets"),
    Rule("completion-", r"\.top_logprobs\[\d+\]\.", "chosen token", added=True),
    Rule("(get-|internal-state)", "", "information"),
    Rule(
        "",
        r"\.(ttft|output_token_logprobs_length|input_top_logprobs|input_token_ids_logprobs|output_ids)$",
        "added",
        True,
    ),
    Rule("", r"\.(prompt_token_ids|stop_reason|metadata|logprobs|refusal|prompt)$", "added", True),
    Rule("", r"\.usage\.(prompt_tokens_details|completion_tokens_details|reasoning_tokens)$", "added", True),
)
"""The first that fits names the difference."""


def reason(case: str, place: str, theirs: Any) -> str | None:
    """The name of a difference that is meant; None for one that is not."""
    for rule in RULES:
        fits = re.match(rule.cases, case) and re.search(rule.place, place)
        if fits and (theirs == MISSING or not rule.added):
            return rule.name
    return None


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


def differences(theirs: Any, ours: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(place, SGLang's value, forebay's value) of everything that differs."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted(theirs.keys() | ours.keys()):
            if key not in VOLATILE and not (key == "id" and _random(theirs.get(key), ours.get(key))):
                yield from differences(theirs.get(key, MISSING), ours.get(key, MISSING), f"{path}.{key}")
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for at, (left, right) in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(left, right, f"{path}[{at}]")
    elif not _same(theirs, ours):
        yield path, theirs, ours


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
    counts: Counter[str] = Counter()
    for name, unequal in report(recordings[0], recordings[1]):
        names = {reason(name, place, theirs) for place, theirs, _ in unequal}
        counts["equal"] += not names
        counts["differ only by added keys"] += names == {"added"}
        counts["differ otherwise, as documented"] += None not in names and bool(names - {"added"})
        counts["differ without a reason"] += None in names
        for place, theirs, ours in unequal:
            kind = reason(name, place, theirs) or "UNEXPLAINED"
            print(f"{kind}\t{name}\t{place}\t{str(theirs)[:160]!r}\t{str(ours)[:160]!r}")
    print(", ".join(f"{count} {what}" for what, count in counts.items()), file=sys.stderr)


if __name__ == "__main__":
    main()
