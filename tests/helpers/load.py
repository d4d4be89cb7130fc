"""A bounded load of streams whose every text is checked against what the echo engine must say.

`Load` keeps a number of clients busy in a thread of its own; each sends request after request, reads what comes as
bytes, and judges it at the end of the request. It knows nothing of the front but its address and tokenizer.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx
from tokenizers import Tokenizer

PARTS = ("the quick ", "brown fox ", "Größe ", "naïve café ", "世界 ", "こんにちは ", "\U0001f600\U0001f680 ", "+ 1\n")
PATIENCE = 30.0
"""Seconds after which a request counts as hung."""


class Outcome(NamedTuple):
    """How one request ended, and when (monotonic seconds).

    `kind`: `whole` (bit-exact), `error` (a status or error event, after a right beginning), `cut` (the connection
    ended early, after a right beginning), `refused` (no connection), `wrong` (a text that the engine never said),
    `hung`.
    """

    kind: str
    status: int
    began: float
    ended: float
    detail: str


class Script:
    """What the echo engine says to a prompt."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def text(self, prompt: str, tokens: int) -> str:
        """The answer of `tokens` tokens: the prompt's ids, again and again."""
        ids = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        return str(self._tokenizer.decode((ids * (tokens // len(ids) + 1))[:tokens], skip_special_tokens=True))


def unchunk(raw: bytes) -> tuple[bytes, bool]:
    """The body behind chunked transfer coding, and whether its end has come."""
    out: list[bytes] = []
    at = 0
    while (line := raw.find(b"\r\n", at)) >= 0:
        size = int(raw[at:line], 16)
        if size == 0:
            return b"".join(out), True
        piece = raw[line + 2 : line + 2 + size]
        out.append(piece)
        at = line + 4 + size
        if len(piece) < size:
            break
    return b"".join(out), False


def read_events(body: bytes) -> tuple[str, dict[str, Any] | None, bool]:
    """Of a completions stream: the text, the error event if there was one, and whether `[DONE]` came."""
    texts, error, done = [], None, False
    for line in body.split(b"\n\n")[:-1]:  # behind the last one: nothing, or a part of an event
        data = line.removeprefix(b"data: ")
        if data == b"[DONE]":
            done = True
        elif line.startswith(b"data: "):
            event = json.loads(data)
            error = event.get("error", error)
            texts += [choice["text"] for choice in event.get("choices", ())]
    return "".join(texts), error, done


def judge(raw: bytes, expected: str, began: float) -> Outcome:
    """What became of a request from all bytes that came back."""
    ended = time.monotonic()
    head, _, body = raw.partition(b"\r\n\r\n")
    if not body:
        return Outcome("cut", 0, began, ended, "no answer")
    status = int(head.split(b" ", 2)[1])
    if b"transfer-encoding: chunked" not in head:
        return _whole(status, head, body, expected, began, ended)
    data, complete = unchunk(body)
    text, error, done = read_events(data)
    if error is not None and complete and done:
        kind = "error" if expected.startswith(text) else "wrong"
        return Outcome(kind, int(error["code"]), began, ended, str(error["message"]))
    if complete and done:
        return Outcome("whole" if text == expected else "wrong", status, began, ended, text[-40:])
    return Outcome("cut" if expected.startswith(text) else "wrong", status, began, ended, text[-40:])


def _whole(status: int, head: bytes, body: bytes, expected: str, began: float, ended: float) -> Outcome:
    length = int(next(line for line in head.split(b"\r\n") if line.startswith(b"content-length")).split(b":")[1])
    if len(body) < length:
        return Outcome("cut", status, began, ended, "a part of the answer")
    answer = json.loads(body)
    if status != 200:
        return Outcome("error", status, began, ended, str(answer.get("error", answer)))
    same = answer["choices"][0]["text"] == expected
    return Outcome("whole" if same else "wrong", status, began, ended, answer["choices"][0]["text"][-40:])


class Load:
    """`clients` clients at work until the end of the `with` block; then `outcomes` holds all that happened."""

    def __init__(
        self, url: str, folder: Path, *, clients: int = 64, seed: int = 1, tokens: tuple[int, int] = (20, 120)
    ) -> None:
        """`tokens`: the least and the most of one answer."""
        address = httpx.URL(url)
        self._host, self._port = address.host, address.port or 80
        self._script = Script(folder)
        self._clients = clients
        self._seed, self._tokens = seed, tokens
        self.outcomes: list[Outcome] = []
        self.streaming = 0
        """Requests that have had their first bytes and not their last."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(PATIENCE + 5)
        assert not self._thread.is_alive()

    def counts(self) -> Counter[str]:
        """How many requests ended in which way."""
        return Counter(outcome.kind for outcome in self.outcomes)

    async def _run(self) -> None:
        await asyncio.gather(*(self._client(number) for number in range(self._clients)))

    async def _client(self, number: int) -> None:
        chance = random.Random(self._seed * 1000 + number)
        await asyncio.sleep(chance.random() * 0.3)
        while not self._stop.is_set():
            prompt = "".join(chance.choices(PARTS, k=chance.randint(1, 8)))
            tokens = chance.randint(*self._tokens)
            body = {"prompt": prompt, "max_tokens": tokens, "stream": chance.random() < 0.8}
            outcome = await self._ask(json.dumps(body).encode(), self._script.text(prompt, tokens))
            self.outcomes.append(outcome)
            if outcome.kind != "whole":
                await asyncio.sleep(0.1)

    async def _ask(self, body: bytes, expected: str) -> Outcome:
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                raw = await self._exchange(body)
        except TimeoutError:
            return Outcome("hung", 0, began, time.monotonic(), expected[:40])
        except ConnectionRefusedError:
            return Outcome("refused", 0, began, time.monotonic(), "")
        return judge(raw, expected, began)

    async def _exchange(self, body: bytes) -> bytes:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
        reader, writer = await asyncio.open_connection(self._host, self._port)
        raw, counted = bytearray(), False
        try:
            writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            while data := await reader.read(1 << 16):
                raw += data
                if not counted:
                    counted = True
                    self.streaming += 1
        except ConnectionError:
            return bytes(raw)
        finally:
            self.streaming -= counted
            writer.close()
        return bytes(raw)
