"""A detokenizer that is killed: whatever was asked goes on where it was, to the answer that it would have had."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.chaos import Fault, assert_idle, assert_nothing_kept, is_ready, number, resumed, strike
from tests.helpers.front import Front, running, wait_for
from tests.helpers.models import make_tokenizer

ROLES = ("api", "tokenizer", "detokenizer")
TIMES = ("id", "e2e_latency", "ttft")
"""What differs between two answers to the same request."""
PROMPT = "the quick brown fox Größe naïve café 世界 こんにちは \U0001f600\U0001f680 + 1\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("model"))


def flags(folder: Path, *more: str, count: int = 2) -> list[str]:
    out = ["--engine", "echo", "--tokenizer-path", str(folder), "--echo-step-ms", "20", "--restart-limit", "100"]
    out += ["--restart-window", "1"]  # the tests kill more than restarts are quick for
    return out + [word for role in ROLES for word in (f"--{role}s", str(count))] + list(more)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Front]:
    with running(tmp_path_factory.mktemp("front"), *flags(folder)) as found:
        yield found


def kinds() -> list[tuple[str, dict[str, Any]]]:
    """Requests of all kinds, each of some hundred tokens at most."""
    chat = [{"role": "user", "content": PROMPT}]
    out: list[tuple[str, dict[str, Any]]] = []
    for stream in (True, False):
        native: dict[str, Any] = {"text": PROMPT, "stream": stream}
        out += [
            ("/generate", {**native, "sampling_params": {"max_new_tokens": 120}}),
            ("/generate", {**native, "sampling_params": {"max_new_tokens": 150, "stream_interval": 7}}),
            (
                "/generate",
                {**native, "return_logprob": True, "top_logprobs_num": 2, "sampling_params": {"max_new_tokens": 90}},
            ),
            (
                "/generate",
                {**native, "sampling_params": {"max_new_tokens": 150, "min_new_tokens": 100, "stop": ["café", "fox "]}},
            ),
            ("/generate", {**native, "sampling_params": {"max_new_tokens": 150, "stop_regex": ["こ[^ ]*は zz"]}}),
            ("/v1/completions", {"prompt": PROMPT, "max_tokens": 130, "n": 3, "stream": stream, "logprobs": 1}),
            ("/v1/chat/completions", {"messages": chat, "max_tokens": 140, "stream": stream, "logprobs": True}),
            ("/v1/chat/completions", {"messages": chat, "max_tokens": 140, "stream": stream, "stop": ["zzz", "\n\n"]}),
        ]
    return out


def ask(front: Front, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """All that an answer says, however its events were cut: texts, logprobs, reasons and counts by choice."""
    with front.client() as client, client.stream("POST", path, json=body) as answer:
        raw = answer.read().decode()
        assert answer.status_code == 200, raw
    if not body.get("stream"):
        return joined([json.loads(raw)], path)
    lines = [line.removeprefix("data: ") for line in raw.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    events = list(map(json.loads, lines))
    assert all("error" not in event for event in events), events[-1]
    return joined(events, path)


def joined(events: list[Any], path: str) -> dict[str, Any]:
    if path == "/generate":  # each event has all so far
        last = events[-1]
        meta = {k: v for k, v in last["meta_info"].items() if k not in TIMES}
        return {"text": last["text"], "ids": last.get("output_ids"), "meta": meta}
    out: dict[str, Any] = {}
    for event in events:
        for choice in event["choices"]:
            mine = out.setdefault(str(choice["index"]), {"text": "", "logprobs": [], "reason": None})
            mine["text"] += (
                choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content") or ""
            )
            mine["reason"] = choice.get("finish_reason") or mine["reason"]
            logprobs = choice.get("logprobs") or {}
            mine["logprobs"] += logprobs.get("content") or logprobs.get("tokens") or []
    return out


def ask_all(front: Front, pool: ThreadPoolExecutor) -> list[Any]:
    return [pool.submit(ask, front, path, body) for path, body in kinds()]


def kill(front: Front, name: str) -> None:
    os.kill(front.pids()[name], signal.SIGKILL)


def test_every_kind_of_answer_is_the_same_whatever_dies_meanwhile(front: Front) -> None:
    with ThreadPoolExecutor(32) as pool:
        expected = [asked.result(60) for asked in ask_all(front, pool)]
        for pause in (0.3, 1.2):
            before, asked = resumed(front), ask_all(front, pool)
            for _ in range(2):
                time.sleep(pause)
                pids = front.pids()
                for name in ("detokenizer-0", "detokenizer-1"):
                    kill(front, name)
                wait_for(partial(new_lives, front, pids), 20, "new lives")
            found = [one.result(60) for one in asked]
            for (path, body), one, other in zip(kinds(), found, expected, strict=True):
                assert one == other, (path, body)
            wait_for(lambda: is_ready(front), 20, "a whole front")
            assert resumed(front) > before
    assert_idle(front)
    assert_nothing_kept(front)


def new_lives(front: Front, before: dict[str, int]) -> bool:
    now = front.pids()
    return all(now.get(name, before[name]) != before[name] for name in ("detokenizer-0", "detokenizer-1"))


def test_both_detokenizers_at_once_cost_nobody_anything(front: Front, folder: Path) -> None:
    found = strike(front, folder, [Fault("detokenizer-0"), Fault("detokenizer-1", after=0.05)], seed=21)
    assert found.of_kind("error", "cut", "refused", "hung", "wrong") == []
    assert_idle(front)


def test_a_tokenizer_that_dies_with_it_costs_nobody_anything(front: Front, folder: Path) -> None:
    found = strike(front, folder, [Fault("tokenizer-1"), Fault("detokenizer-1", after=0.02)], seed=22)
    assert found.of_kind("error", "cut", "refused", "hung", "wrong") == []
    assert_idle(front)


def test_an_api_process_that_dies_with_it_takes_only_its_own_along(front: Front, folder: Path) -> None:
    found = strike(front, folder, [Fault("detokenizer-0"), Fault("api-0", after=0.05)], seed=23)
    assert found.of_kind("error", "hung", "wrong") == []
    assert len([outcome for outcome in found.hit() if outcome.kind == "whole"]) > 10
    assert_idle(front)
    assert_nothing_kept(front)


def test_an_engine_that_is_busy_meanwhile_goes_on_with_all_of_them(front: Front, folder: Path) -> None:
    found = strike(front, folder, [Fault("engine-0", frozen=1.5), Fault("detokenizer-0", after=0.02)], seed=24)
    assert found.of_kind("error", "cut", "refused", "hung", "wrong") == []
    assert_idle(front)


def test_an_api_process_that_lags_behind_hears_nothing_twice(front: Front, folder: Path) -> None:
    found = strike(front, folder, [Fault("api-0", frozen=1.5), Fault("detokenizer-0", after=0.3)], seed=25)
    assert found.of_kind("error", "cut", "refused", "hung", "wrong") == []
    assert_idle(front)


class Reader(threading.Thread):
    """Reads one long stream until its end."""

    def __init__(self, front: Front) -> None:
        super().__init__(daemon=True)
        self._front = front
        self.first, self.leave = threading.Event(), threading.Event()
        self.events: list[str] = []
        self.ended = 0.0
        self.start()

    def run(self) -> None:
        body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 100_000}}
        with (
            contextlib.suppress(httpx.HTTPError),
            self._front.client() as client,
            client.stream("POST", "/generate", json=body) as answer,
        ):
            for line in answer.iter_lines():
                if line:
                    self.events.append(line.removeprefix("data: "))
                    self.first.set()
                if self.leave.is_set():
                    break
        self.ended = time.monotonic()

    def error(self) -> Any:
        assert self.events[-1] == "[DONE]"
        return json.loads(self.events[-2])["error"]


def readers_of(front: Front, count: int) -> list[Reader]:
    readers = [Reader(front) for _ in range(count)]
    for reader in readers:
        assert reader.first.wait(20)
    return readers


def test_clients_that_leave_while_it_is_away_leave_nothing_behind(front: Front) -> None:
    readers = readers_of(front, 8)
    os.kill(front.pids()["detokenizer-0"], signal.SIGKILL)
    os.kill(front.pids()["detokenizer-1"], signal.SIGKILL)
    with front.client() as client:
        client.post("/abort_request", json={"abort_all": True})
    for reader in readers:
        reader.leave.set()
        reader.join(20)
    wait_for(lambda: is_ready(front), 20, "a whole front")
    assert_idle(front)
    assert_nothing_kept(front)


@pytest.mark.parametrize(
    ("more", "seconds"),
    [(["--resume-timeout", "0"], 2.0), (["--resume-kept-bytes", "0"], 2.0), (["--resume-timeout", "0.05"], 3.0)],
    ids=["off", "nothing-kept", "too-late"],
)
def test_what_does_not_go_on_ends_with_an_error_in_time(
    tmp_path: Path, folder: Path, more: list[str], seconds: float
) -> None:
    with running(tmp_path, *flags(folder, *more, count=1)) as single:
        readers = readers_of(single, 4)
        kill(single, "detokenizer-0")
        killed = time.monotonic()
        for reader in readers:
            reader.join(10)
            assert reader.error()["code"] == 503
            assert reader.error()["retryable"] is True
            assert reader.ended - killed < seconds
        wait_for(lambda: is_ready(single, 1), 20, "a whole front")
        assert_idle(single)
        assert_nothing_kept(single)
        with single.client() as client:
            assert client.post("/generate", json={"text": "hello"}).status_code == 200


def test_streams_that_are_longer_than_what_is_kept_end_with_an_error(tmp_path: Path, folder: Path) -> None:
    with running(tmp_path, *flags(folder, "--resume-kept-bytes", "8000", count=1)) as single:
        (old,) = readers_of(single, 1)
        wait_for(lambda: len(old.events) > 400, 30, "more steps than are kept")
        (new,) = readers_of(single, 1)
        count = len(new.events)
        kill(single, "detokenizer-0")
        old.join(10)
        assert old.error()["code"] == 503
        wait_for(lambda: len(new.events) > count + 50, 20, "a stream that goes on")
        assert number(single, "resumed_requests_total") == 1
        new.leave.set()
        new.join(10)
        assert_idle(single)
