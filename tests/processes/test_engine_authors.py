"""The engine of docs/engine-authors.md, as it stands there, serves real clients."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import psutil

from tests.helpers.front import wait_for
from tests.helpers.models import make_tokenizer
from tests.helpers.tied import tied

PAGE = Path(__file__).parents[2] / "docs" / "engine-authors.md"


def program() -> str:
    found = re.search(r"```python\n(import sys\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_engine_in_the_docs_has_under_100_lines() -> None:
    assert len(program().splitlines()) < 100


def test_the_engine_in_the_docs_serves(tmp_path: Path) -> None:
    model = make_tokenizer(tmp_path / "model")
    script = tmp_path / "engine.py"
    script.write_text(program())
    url, run_dir = f"http://127.0.0.1:{free_port()}", tmp_path / "run"
    environ = {**os.environ, "FOREBAY_PORT": url.rpartition(":")[2], "FOREBAY_RUN_DIR": str(run_dir)}
    with (tmp_path / "log").open("wb") as log:
        engine = subprocess.Popen(tied([sys.executable, script, model]), env=environ, stdout=log, stderr=log)
    family: list[psutil.Process] = []
    try:
        with httpx.Client(base_url=url, timeout=20) as client:

            def ready() -> bool:
                try:
                    return client.get("/ready").status_code == 200
                except httpx.TransportError:
                    return False

            wait_for(ready, 40, "the front of the engine in the docs")
            family = psutil.Process(engine.pid).children(recursive=True)
            body = {
                "input_ids": [40, 41, 42],
                "sampling_params": {"max_new_tokens": 4},
                "return_logprob": True,
                "stream": False,
            }
            answer = client.post("/generate", json=body).json()
            assert answer["output_ids"] == [42, 41, 40, 42]
            assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 4}
            assert answer["meta_info"]["output_token_logprobs"][0][:2] == [-0.5, 42]
            chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "stream": True}
            assert client.post("/v1/chat/completions", json=chat).text.endswith("data: [DONE]\n\n")
            assert client.get("/server_info").json()["internal_states"] == [{"num_running_reqs": 0}]
            assert client.post("/generate", json={"text": "x", "sampling_params": {"regex": "a+"}}).status_code == 400
    except BaseException:
        print((tmp_path / "log").read_text()[-10_000:])
        raise
    finally:
        engine.send_signal(signal.SIGINT)
        engine.wait(20)
        left = psutil.wait_procs(family, 20)[1]
        for process in left:
            process.kill()
    assert not left
    assert not run_dir.exists() or not list(run_dir.iterdir())
