"""`forebay serve` as process 1, as in a container: orphans are reaped, a stop drains, and `forebay probe` knows."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import httpx
import psutil
import pytest

from tests.helpers.front import Front, wait_for
from tests.helpers.models import make_tokenizer
from tests.helpers.tied import tied

SPACE = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--pid", "--fork", "--mount-proc"]


@cache
def refusal() -> str:
    """Why this system makes no PID namespaces for us; empty when it does."""
    try:
        done = subprocess.run([*SPACE, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "no unshare (util-linux)"
    return done.stderr.strip() if done.returncode else ""


pytestmark = pytest.mark.skipif(bool(refusal()), reason=f"needs PID namespaces: {refusal()}")


class Contained(Front):
    """A front whose supervisor is process 1. `process` is `unshare`, which passes on its exit code and no signal."""

    @property
    def supervisor(self) -> psutil.Process:
        return psutil.Process(self.process.pid).children()[0]

    def inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the namespaces of the front."""
        whose = ["--user", "--preserve-credentials"] if "--user" in SPACE else []
        enter = ["nsenter", "--target", str(self.supervisor.pid), "--pid", "--mount", "--wd=.", *whose, "--"]
        return subprocess.run([*enter, *command], capture_output=True, text=True, timeout=40, check=False)

    def probe(self, *flags: str) -> subprocess.CompletedProcess[str]:
        return self.inside(sys.executable, "-m", "forebay.cli", "probe", "--run-dir", str(self.run_dir), *flags)

    def end(self) -> int:
        """SIGTERM to process 1; the exit code."""
        self.supervisor.send_signal(signal.SIGTERM)
        return self.process.wait(20)


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Contained]:
    tokenizer = make_tokenizer(tmp_path / "model")
    serve = [sys.executable, "-m", "forebay.cli", "serve", "--port", "0", "--run-dir", str(tmp_path / "run")]
    serve += ["--engine", "echo", "--tokenizer-path", str(tokenizer), "--echo-step-ms", "10"]
    with (tmp_path / "front.log").open("wb") as log:
        process = subprocess.Popen(tied([*SPACE, "--kill-child", *serve]), stdout=log, stderr=log)
    made = Contained(process, tmp_path / "run", tmp_path / "front.log")
    try:
        made.wait_ready()
        yield made
    finally:
        if process.poll() is None:
            with contextlib.suppress(psutil.Error, IndexError):
                made.supervisor.kill()  # and with it all in its namespace
            process.kill()
            process.wait()


def orphans(front: Contained) -> dict[str, str]:
    """Name and state of what process 1 has inherited."""
    found = {}
    for child in front.supervisor.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            found[child.name()] = child.status()
    return {name: state for name, state in found.items() if "python" not in name}


def test_orphan_is_reaped_when_it_ends(front: Contained) -> None:
    assert front.inside("sh", "-c", "sleep 60 >/dev/null 2>&1 &").returncode == 0
    wait_for(lambda: orphans(front).keys() == {"sleep"}, 10, "the orphan")
    next(child for child in front.supervisor.children() if child.name() == "sleep").kill()
    wait_for(lambda: orphans(front) == {}, 10, "its end")
    assert front.end() == 0


def test_many_orphans_and_a_killed_process_at_once_leave_no_zombie(front: Contained) -> None:
    victim = next(child for child in front.supervisor.children() if "forebay_tokenizer" in child.cmdline())
    many = "for n in 1 2 3 4 5 6 7 8 9 10; do sleep 0.$n >/dev/null 2>&1 & done"
    assert front.inside("sh", "-c", many).returncode == 0
    victim.kill()
    wait_for(lambda: front.text().count("tokenizer-0 is ready") == 2, 20, "the next tokenizer")
    wait_for(lambda: orphans(front) == {}, 10, "the end of all orphans")
    states = [child.status() for child in front.supervisor.children()]
    assert len(states) == 4
    assert psutil.STATUS_ZOMBIE not in states
    assert front.end() == 0


def test_stop_before_the_supervisor_runs_is_not_lost() -> None:
    code = (
        "import os, signal, forebay.serving as serving; from forebay.settings import Settings\n"
        "serving.check_files = lambda settings: os.kill(os.getpid(), signal.SIGTERM)\n"
        "serving.prepare_model = lambda settings: os._exit(7)\n"
        "try: serving.serve_front(Settings(port=0))\n"
        "except KeyboardInterrupt: os._exit(3)"
    )
    done = subprocess.run([*SPACE, sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 3, done.stderr


def test_stop_lets_a_running_stream_end_and_leaves_nothing(front: Contained) -> None:
    body = {"prompt": "fox", "max_tokens": 100, "stream": True}
    with front.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        front.supervisor.send_signal(signal.SIGTERM)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert front.process.wait(20) == 0
    assert not front.run_dir.exists()


def test_probe_finds_the_front_by_its_run_folder_and_says_how_it_is(front: Contained) -> None:
    assert front.probe().returncode == 0  # the port is a free one: only the run folder knows it
    with front.client() as client:
        assert client.post("/pause_generation", json={}).status_code == 200
    paused = front.probe("--path", "/ready")
    assert paused.returncode == 1
    assert "the front answers 503 to /ready" in paused.stderr
    with front.client() as client:
        assert client.post("/continue_generation", json={}).status_code == 200
    wait_for(lambda: front.probe("--path", "/ready").returncode == 0, 10, "a ready front")
    url = httpx.URL(front.url)
    assert front.end() == 0
    gone = [sys.executable, "-m", "forebay.cli", "probe", "--port", str(url.port)]
    done = subprocess.run(gone, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, "no answer from the front" in done.stderr) == (1, True)
