"""Sends the comparison's requests to a front and writes its answers.

`python -m tests.helpers.sglang_record URL FILE [START ...]`: once against SGLang's own front and once against forebay
inside the same SGLang; `sglang_compare` then lists every difference. With STARTs, only cases whose names start so are
sent, and their answers replaced. Needs the standard library only. Cases that end others are sent one at a time.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.helpers.sglang_cases import Case, all_cases

AT_ONCE = 6
PATIENCE = 100.0
"""Seconds until a case counts as unanswered."""
Answer = dict[str, Any]
"""`status`, and `json`, `text` or `frames` (the data of each event, parsed where it is JSON)."""


class Client:
    """One front at an address."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80

    def open(self, path: str, body: Any) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=PATIENCE)
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return connection, connection.getresponse()

    def ask(self, case: Case) -> Answer:
        """The answer of one case, with what its client does meanwhile."""
        action = case.get("action", "")
        if action == "abort after 1 s":
            rid = {"rid": case["body"]["rid"]}
            threading.Timer(1.0, lambda: self.open("/abort_request", rid)[0].close()).start()
        try:
            return self._answer(case, action)
        except (OSError, http.client.HTTPException) as error:
            return {"status": None, "text": f"no answer: {error!r}"}

    def _answer(self, case: Case, action: str) -> Answer:
        connection, response = self.open(case["path"], case["body"])
        try:
            if "text/event-stream" in (response.getheader("content-type") or ""):
                return {"status": response.status, "frames": self._frames(response, case, action)}
            return {"status": response.status, **_content(response.read())}
        finally:
            connection.close()

    def _frames(self, response: http.client.HTTPResponse, case: Case, action: str) -> list[Any]:
        frames: list[Any] = []
        while line := response.readline():
            text = line.decode().strip()
            if not text.startswith("data:"):
                continue
            data = text[5:].strip()
            frames.append(data if data == "[DONE]" else json.loads(data))
            if len(frames) == 3 and action.endswith("after 3"):
                if action.startswith("leave"):
                    return ["left"]
                everything = action.startswith("abort all")
                abort = {"abort_all": True} if everything else {"rid": case["body"]["rid"]}
                self.open("/abort_request", abort)[0].close()
        return frames


def _content(raw: bytes) -> Answer:
    try:
        return {"json": json.loads(raw)}
    except ValueError:
        return {"text": raw.decode(errors="replace")}


def record(url: str, starts: tuple[str, ...] = ("",)) -> dict[str, Answer]:
    """The answer of every case whose name starts so, by name."""
    client, cases = Client(url), [case for case in all_cases() if case["name"].startswith(starts)]
    alone = [case for case in cases if "action" in case or case["body"] is None]
    together = [case for case in cases if case not in alone]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = dict(zip([c["name"] for c in together], pool.map(client.ask, together), strict=True))
    for case in alone:
        answers[case["name"]] = client.ask(case)
        if case.get("action"):
            time.sleep(0.5)  # what was aborted has left the engine before the next case starts
    return answers


def main() -> None:
    url, path, *starts = sys.argv[1:]
    began = time.monotonic()
    answers = record(url, tuple(starts) or ("",))
    if starts:
        with open(path, encoding="utf-8") as file:
            answers = json.load(file) | answers
    with open(path, "w", encoding="utf-8") as file:
        json.dump(answers, file, ensure_ascii=False)
    print(f"{len(answers)} answers in {time.monotonic() - began:.0f} s -> {path}")


if __name__ == "__main__":
    main()
