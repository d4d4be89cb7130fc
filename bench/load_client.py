#!/usr/bin/env python3
"""Streaming HTTP load client for LLM serving fronts (standard library only).

One process, one epoll loop, raw non-blocking sockets, no JSON in the hot path, so that it can share a small machine
with the server it drives. Speaks three request shapes, each streaming (SSE) or not:

    --api generate      POST /generate               (text or input_ids)
    --api completions   POST /v1/completions
    --api chat          POST /v1/chat/completions

Closed loop: `--concurrency` requests are kept in flight until `--requests` have been sent. Open loop: `--rate`
requests a second (Poisson, `--seed`), at most `--concurrency` at once.

Result: one JSON object on stdout (or `--out`). What is counted:

    tokens       the last `completion_tokens` that each response reports (usage or meta_info)
    events       SSE events (`[DONE]` excluded); events < tokens means that the server merged some
    bytes        all bytes received, HTTP framing included
    ttft_ms      start of the send() of the last request byte -> first event that carries text (`generate`: first event)
    itl_ms       gap between consecutive events of one stream; events of one read count as gap 0 after the first
    read_gap_ms  the same, but only between reads (no zeros)
    client_cpu_s, server_cpu_s   CPU seconds in the measured span, from schedstat; the server's need `--server-pid`
                 (repeatable) or `--server-tree` (a pid with its descendants); server_threads_cpu_s has each thread
    server_rss_mib  start, peak (sampled), end, summed over the same processes

With `--dump FILE` every stream is written as one JSON line (rid, send_ns, first_ns, done_ns, arrival times in
CLOCK_MONOTONIC ns and cumulative token counts), to be joined with an engine's log of its steps. `--keep K` keeps the
first K bodies, decodes them after the run and checks them: `--expect-file F` compares the joined text with the
beginning of F (an unfinished last character is left out), and a sha256 of each joined text is reported.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from typing import Any

import _cpu
from _streams import RE_CHUNKED, Streams

PATHS = {"generate": "/generate", "completions": "/v1/completions", "chat": "/v1/chat/completions"}


# -------------------------------------------------------------------- requests
def prompt_of(options: Namespace, rng: random.Random, seq: int) -> Any:
    """Text, token ids or chat messages of one request."""
    if options.prompt_ids:
        fresh = options.vary
        return (
            [rng.randrange(options.id_lo, options.id_hi) for _ in range(options.prompt_ids)] if fresh else options.ids
        )
    text = f"{seq} {options.text}" if options.vary else options.text
    if options.api == "chat":
        history = options.history
        if options.vary_history:
            history = [{**message, "content": f"{seq} {message['content']}"} for message in history]
        return [*history, {"role": "user", "content": text}]
    return text


def build_body(options: Namespace, rng: random.Random, seq: int) -> tuple[str, bytes]:
    """The id and the body of one request."""
    rid = f"{options.rid_prefix}{seq}"
    prompt = prompt_of(options, rng, seq)
    body: dict[str, Any]
    if options.api == "generate":
        sampling = {"max_new_tokens": options.max_tokens, "temperature": 0.0, "ignore_eos": True}
        name = "input_ids" if options.prompt_ids else "text"
        body = {name: prompt, "stream": options.stream, "sampling_params": sampling}
    else:
        body = {"model": options.model, "messages" if options.api == "chat" else "prompt": prompt}
        body |= {"max_tokens": options.max_tokens, "temperature": 0.0, "stream": options.stream, "ignore_eos": True}
        if options.stream and not options.no_usage:
            body["stream_options"] = {"include_usage": True}
    if options.rid_field:
        body[options.rid_field] = rid
    body.update(options.extra)
    return rid, json.dumps(body).encode()


def build_request(options: Namespace, rng: random.Random, seq: int) -> tuple[str, bytes]:
    """The id and all bytes of one request."""
    rid, body = build_body(options, rng, seq)
    lines = [
        f"POST {options.path} HTTP/1.1",
        f"Host: {options.host}:{options.port}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *options.header,
        *([] if options.keepalive else ["Connection: close"]),
    ]
    return rid, "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def requests_of(options: Namespace, rng: random.Random) -> Iterable[tuple[str, bytes]]:
    """All requests: made beforehand while they fit into 200 MB, else while the run goes on."""
    made = (build_request(options, rng, seq) for seq in range(options.requests))
    size = options.requests * max(len(options.text) + options.history_chars, options.prompt_ids * 6)
    return list(made) if size < 2e8 else made


# -------------------------------------------------------------------- after the run
def percentiles(values: Sequence[float], events: Sequence[int] | None = None) -> dict[str, float] | None:
    """Mean and percentiles; where a read brought several events, the others count as zeros."""
    if not len(values):
        return None
    zeros = sum(count - 1 for count in events if count > 1) if events is not None else 0
    ordered = sorted(values)
    n = len(ordered) + zeros

    def at(part: float) -> float:
        place = min(n - 1, max(0, round(part * (n - 1))))
        return 0.0 if place < zeros else ordered[place - zeros]

    parts = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    out = {"n": n, "mean": sum(ordered) / n, "min": 0.0 if zeros else ordered[0]}
    return {**out, **{name: at(part) for name, part in parts.items()}, "max": ordered[-1]}


def dechunk(raw: bytes) -> bytes:
    """The body of a raw HTTP answer."""
    end = raw.find(b"\r\n\r\n")
    head, body = raw[:end], raw[end + 4 :]
    if not RE_CHUNKED.search(head + b"\r\n"):
        return body
    out, place = [], 0
    while (line := body.find(b"\r\n", place)) >= 0:
        size = int(body[place:line].split(b";")[0], 16)
        if size == 0:
            break
        out.append(body[line + 2 : line + 2 + size])
        place = line + 2 + size + 2
    return b"".join(out)


def objects_of(raw: bytes, stream: bool) -> list[Any]:
    """The JSON objects of an answer: one, or one an event."""
    body = dechunk(raw)
    if not stream:
        return [json.loads(body)]
    lines = [line[5:].strip() for line in body.replace(b"\r\n", b"\n").split(b"\n") if line.startswith(b"data:")]
    return [json.loads(line) for line in lines if line and line != b"[DONE]"]


def decode_answer(raw: bytes, stream: bool, cumulative: bool) -> dict[str, Any]:
    """Joined text, number of events, finish reason and token count of one kept answer."""
    text, reason, tokens = "", None, None
    objects = [one for one in objects_of(raw, stream) if isinstance(one, dict)]
    for one in objects:
        if "meta_info" in one:
            piece = one.get("text") or ""
            text = piece if cumulative else text + piece
            reason = one["meta_info"].get("finish_reason") or reason
            tokens = one["meta_info"].get("completion_tokens")
            continue
        for choice in one.get("choices", []):
            piece = choice.get("text")
            if piece is None:
                delta = choice.get("delta") or choice.get("message") or {}
                piece = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
            text += piece or ""
            reason = choice.get("finish_reason") or reason
        if one.get("usage"):
            tokens = one["usage"].get("completion_tokens")
    return {"text": text, "events": len(objects), "finish_reason": reason, "completion_tokens": tokens}


def check_kept(options: Namespace, kept: list[tuple[str, bytes]], expected: str | None) -> list[dict[str, Any]]:
    """What the kept answers say, and whether their texts are the expected one."""
    out = []
    for rid, raw in kept:
        try:
            one = decode_answer(raw, options.stream, options.cumulative)
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # report it, and do not lose the run
            tail = raw[-200:].decode("utf-8", "replace")
            out.append({"rid": rid, "decode_error": repr(error), "raw_tail": tail})
            continue
        text = one.pop("text")
        facts = {"rid": rid, **one, "chars": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()[:16]}
        if expected is not None:
            shown = (text.strip() if options.expect_strip else text).rstrip("\ufffd")
            facts["matches"] = bool(shown) and (expected.strip() if options.expect_strip else expected).startswith(
                shown
            )
            if not facts["matches"]:
                facts["text_head"] = text[:80]
        out.append(facts)
    return out


# -------------------------------------------------------------------- the command
def parse(argv: Sequence[str] | None = None) -> Namespace:
    """The options, with what is derived from them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, required=True)
    add("--api", choices=tuple(PATHS), default="generate")
    add("--path", help="override the URL path")
    add("--model", default="mock")
    add("--concurrency", type=int, default=1)
    add("--requests", type=int, help="default: concurrency")
    add("--rate", type=float, default=0.0, help="open loop: requests a second")
    add("--ramp-s", type=float, default=0.0, help="spread the first --concurrency sends over this time")
    add("--max-tokens", type=int, default=128)
    add("--prompt", default="Hello")
    add("--prompt-file")
    add("--prompt-bytes", type=int, default=0, help="cut or repeat --prompt-file to this size")
    add("--prompt-ids", type=int, default=0, help="send this many token ids instead of text")
    add("--history-file", help="chat: a JSON list of messages before the prompt, the same in every request")
    add("--vary-history", action="store_true", help="chat: different messages before the prompt, too")
    add("--id-lo", type=int, default=100)
    add("--id-hi", type=int, default=30000)
    add("--vary", action="store_true", help="a different prompt for every request")
    add("--no-stream", dest="stream", action="store_false")
    add("--cumulative", action="store_true", help="/generate events carry the whole text so far")
    add("--no-usage", action="store_true", help="do not ask for stream_options.include_usage")
    add("--rid-field", default="", help="body field that carries the request id (e.g. rid, request_id)")
    add("--rid-prefix", default="lc-")
    add("--extra", type=json.loads, default={}, help="JSON merged into every body")
    add("--header", action="append", default=[], help="extra header 'Name: value'")
    add("--no-keepalive", dest="keepalive", action="store_false")
    add("--warmup", type=int, default=0, help="requests sent and discarded before measuring")
    add("--timeout", type=float, default=300.0)
    add("--seed", type=int, default=1)
    add("--keep", type=int, default=1)
    add("--expect-file")
    add("--expect-strip", action="store_true")
    add("--dump")
    add("--out")
    add("--server-pid", type=int, action="append", default=[])
    add("--server-tree", type=int, action="append", default=[])
    add("--rss-every", type=float, default=0.25)
    add("--abort-every", type=int, default=0, help="close every Nth stream early")
    add("--abort-after", type=int, default=5, help="... after this many events")
    add("--slow-every", type=int, default=0, help="every Nth stream reads slowly")
    add("--slow-ms", type=float, default=100.0)
    add("--rcvbuf", type=int, default=0)
    add("--recv-size", type=int, default=65536)
    add("--tail", type=int, default=8192)
    add("--cpu", type=int, action="append", default=[], help="pin the client to these cores")
    options = parser.parse_args(argv)
    derive(options)
    return options


def derive(options: Namespace) -> None:
    """Read the files, and fill in what other options decide."""
    options.requests = options.requests or options.concurrency
    options.path = options.path or PATHS[options.api]
    options.text = options.prompt
    if options.prompt_file:
        with open(options.prompt_file, encoding="utf-8") as file:
            options.text = file.read()
        if size := options.prompt_bytes:
            repeated = options.text * (size // max(1, len(options.text.encode())) + 1)
            options.text = repeated.encode()[:size].decode("utf-8", "ignore")
    options.history = []
    if options.history_file:
        with open(options.history_file, encoding="utf-8") as file:
            options.history = json.load(file)
    options.history_chars = sum(len(str(message)) for message in options.history)
    rng = random.Random(options.seed)
    options.ids = [rng.randrange(options.id_lo, options.id_hi) for _ in range(options.prompt_ids)]


def warm_up(options: Namespace, rng: random.Random) -> None:
    """Requests that are not measured."""
    quiet = Namespace(**vars(options))
    quiet.requests = options.warmup
    quiet.concurrency = min(options.warmup, options.concurrency)
    quiet.keep, quiet.dump, quiet.rate, quiet.ramp_s, quiet.abort_every, quiet.slow_every = 0, None, 0, 0, 0, 0
    quiet.rid_prefix = "warm-" + options.rid_prefix
    streams = Streams(quiet, [])
    streams.preconnect(quiet.concurrency)
    streams.run([build_request(quiet, rng, seq) for seq in range(quiet.requests)])
    streams.close()


def result_of(options: Namespace, streams: Streams, wall: float, client_cpu: float) -> dict[str, Any]:
    """What the client itself has seen."""
    gaps = [gap / 1e6 for gap in streams.gap]
    tokens = streams.tokens
    names = ("api", "stream", "concurrency", "requests", "rate", "max_tokens")
    out: dict[str, Any] = {name: getattr(options, name) for name in names}
    out |= {"wall_s": wall, "status": streams.status, "errors": streams.errors, "aborted": streams.aborted}
    out |= {"tokens": tokens, "events": streams.events, "bytes": streams.nbytes}
    out |= {"tok_per_s": tokens / wall, "req_per_s": streams.done / wall}
    out["events_per_token"] = streams.events / tokens if tokens else None
    out["bytes_per_token"] = streams.nbytes / tokens if tokens else None
    out |= {"ttft_ms": percentiles(streams.ttft), "e2e_ms": percentiles(streams.e2e)}
    out |= {"itl_ms": percentiles(gaps, streams.gap_events), "read_gap_ms": percentiles(gaps)}
    out["client_cpu_s"] = client_cpu
    out["client_cpu_s_per_mtok"] = client_cpu / tokens * 1e6 if tokens else None
    if streams.error_samples:
        out["error_bodies"] = streams.error_samples
    return out


def own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(options: Namespace, streams: Streams, requests: Iterable[tuple[str, bytes]]) -> dict[str, Any]:
    """Run, and account for the servers' processes in the same span."""
    pids = streams.pids
    rss_start = _cpu.rss_mib(pids)
    before, own = _cpu.threads(pids), own_cpu()
    begin, end = streams.run(requests)
    own, after = own_cpu() - own, _cpu.threads(pids)
    result = result_of(options, streams, (end - begin) / 1e9, own)
    if pids:
        each = _cpu.used(before, after)
        total = sum(sum(names.values()) for names in each.values())
        result["server_cpu_s"] = total
        result["server_threads_cpu_s"] = each
        result["server_cpu_s_per_mtok"] = total / streams.tokens * 1e6 if streams.tokens else None
        peak = max(streams.rss_peak, rss_start)
        memory = {"start": rss_start, "peak": peak, "end": _cpu.rss_mib(pids), "pss_end": _cpu.pss_mib(pids)}
        result["server_rss_mib"] = memory
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run; exit code 1 when an answer was not 200 or a stream broke, 2 when there is no server."""
    options = parse(argv)
    if options.cpu:
        os.sched_setaffinity(0, set(options.cpu))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    pids = sorted({*options.server_pid, *(pid for root in options.server_tree for pid in _cpu.tree(root))})
    rng = random.Random(options.seed)
    streams = Streams(options, pids)
    try:
        if options.warmup:
            warm_up(options, rng)
        requests = requests_of(options, rng)
        streams.preconnect(min(options.concurrency, options.requests))
    except OSError as error:
        print(json.dumps({"error": f"connect {options.host}:{options.port}: {error.strerror}"}))
        return 2
    result = measure(options, streams, requests)
    expected = None
    if options.expect_file:
        with open(options.expect_file, encoding="utf-8") as file:
            expected = file.read()
    kept = check_kept(options, streams.kept, expected)
    result["kept"] = kept[:3]
    if expected is not None:
        result["kept_matching"] = f"{sum(bool(one.get('matches')) for one in kept)}/{len(kept)}"
    if options.dump:
        with open(options.dump, "w") as file:
            file.writelines(json.dumps(one) + "\n" for one in streams.dump)
    text = json.dumps(result) + "\n"
    if options.out:
        with open(options.out, "w") as file:
            file.write(text)
    else:
        sys.stdout.write(text)
    return 0 if not streams.errors and set(streams.status) <= {200} else 1


if __name__ == "__main__":
    sys.exit(main())
