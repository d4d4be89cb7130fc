"""A front in operation: one process after the other restarted under load, keys and log level reloaded, secrets kept."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.helpers.front import Front, running, wait_for
from tests.helpers.load import Load

KEY, ADMIN, OTHER = "sk-front-5d41402a", "sk-admin-7b52009b", "sk-other-9f1c03e7"
ECHO = ("--engine", "echo", "--restart-limit", "50")


def ready(front: Front) -> bool:
    with front.client() as client:
        return client.get("/ready").status_code == 200


def restart(front: Front, name: str) -> float:
    """Ask one process to stop and wait until the next one serves; seconds until the old one had ended."""
    old = psutil.Process(front.pids()[name])
    began = time.monotonic()
    old.send_signal(signal.SIGTERM)
    wait_for(lambda: not old.is_running() or old.status() == psutil.STATUS_ZOMBIE, 20, f"the end of {name}")
    took = time.monotonic() - began
    wait_for(lambda: front.pids().get(name, old.pid) != old.pid, 20, f"the next {name}")
    wait_for(lambda: f"{name} is ready" in front.text()[-50_000:] and ready(front), 20, f"a whole front after {name}")
    return took


# ---------------------------------------------------------------- rolling restart
@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Front]:
    """Two of each role, so that one can take over."""
    flags = ("--tokenizer-path", str(folder), "--echo-step-ms", "10", "--warmup")
    twos = [word for role in ("apis", "tokenizers", "detokenizers") for word in (f"--{role}", "2")]
    with running(tmp_path_factory.mktemp("pairs"), *ECHO, *flags, *twos) as found:
        yield found


@pytest.mark.parametrize("name", ["api-0", "tokenizer-0", "detokenizer-1"])
def test_restart_of_one_process_under_load_costs_nobody_anything(pairs: Front, folder: Path, name: str) -> None:
    with Load(pairs.url, folder, clients=16, seed=sum(map(ord, name))) as load:
        wait_for(lambda: len(load.outcomes) > 20, 20, "a load that runs")
        took = restart(pairs, name)
        before = len(load.outcomes)
        wait_for(lambda: len(load.outcomes) > before + 20, 20, "requests after the restart")
    assert [outcome for outcome in load.outcomes if outcome.kind != "whole"] == []
    assert took < 5


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Front]:
    flags = ("--tokenizer-path", str(folder), "--echo-step-ms", "10", "--drain-timeout", "3")
    with running(tmp_path_factory.mktemp("single"), *ECHO, *flags) as found:
        yield found


@pytest.mark.parametrize("name", ["tokenizer-0", "detokenizer-0"])
def test_requests_wait_while_the_only_process_of_a_role_is_restarted(single: Front, folder: Path, name: str) -> None:
    with Load(single.url, folder, clients=8, seed=5) as load:
        wait_for(lambda: len(load.outcomes) > 10, 20, "a load that runs")
        restart(single, name)
        before = len(load.outcomes)
        wait_for(lambda: len(load.outcomes) > before + 10, 20, "requests after the restart")
    assert [outcome for outcome in load.outcomes if outcome.kind != "whole"] == []


def test_a_stream_longer_than_the_drain_time_goes_on_when_its_detokenizer_stops(single: Front) -> None:
    body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 700}}
    with single.client() as client, client.stream("POST", "/generate", json=body) as answer:
        lines = (line for line in answer.iter_lines() if line)
        next(lines)
        took = restart(single, "detokenizer-0")
        *_, last, done = list(lines)
    assert done == "data: [DONE]"
    assert json.loads(last.removeprefix("data: "))["meta_info"]["completion_tokens"] == 700
    assert 3 <= took < 5


# ---------------------------------------------------------------- reload
class Configured:
    """A front whose settings stand in a file."""

    def __init__(self, front: Front, config: Path, common: str) -> None:
        self.front, self.config, self._common = front, config, common

    def write(self, text: str) -> None:
        self.config.write_text(self._common + text)

    def hang_up(self) -> None:
        """Write to the supervisor that its settings have changed."""
        seen = len(self.front.text())
        self.front.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "reloaded" in self.front.text()[seen:], 10, "the supervisor's line about it")

    def status(self, key: str, path: str = "/v1/models") -> int:
        with self.front.client(headers={"authorization": f"Bearer {key}"}) as client:
            return client.get(path).status_code


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Configured]:
    where = tmp_path_factory.mktemp("keyed")
    config = where / "forebay.toml"
    common = f'tokenizer_path = "{folder}"\nlog_requests = true\n'
    config.write_text(f'{common}api_key = "{KEY}"\nadmin_api_key = "{ADMIN}"\n')
    config.chmod(0o600)
    with running(where, "--config", str(config), *ECHO) as found:
        yield Configured(found, config, common)


def test_hangup_takes_keys_and_log_level_from_the_settings_file(keyed: Configured) -> None:
    assert (keyed.status(KEY), keyed.status(OTHER)) == (200, 401)
    keyed.write(f'api_key = "{OTHER}"\nlog_level = "debug"\n')
    keyed.hang_up()
    wait_for(lambda: keyed.status(OTHER) == 200, 5, "the new key")
    assert keyed.status(KEY) == 401
    wait_for(lambda: keyed.front.text().count("reloaded api_key") == 5, 5, "the line of every process")
    assert ready(keyed.front)


def test_process_that_is_started_later_has_the_reloaded_keys(keyed: Configured) -> None:
    keyed.write(f'api_key = "{OTHER}"\n')
    keyed.hang_up()
    os.kill(keyed.front.pids()["api-0"], signal.SIGKILL)
    wait_for(lambda: answers(keyed, OTHER) == 200, 20, "the restarted api process")
    assert keyed.status(KEY) == 401


def answers(keyed: Configured, key: str) -> int:
    try:
        return keyed.status(key)
    except httpx.TransportError:
        return 0


def test_wrong_settings_file_changes_nothing(keyed: Configured) -> None:
    keyed.write(f'api_key = "{KEY}"\n')
    keyed.hang_up()
    wait_for(lambda: keyed.status(KEY) == 200, 5, "the key")
    keyed.write(f'api_key = "{ADMIN}"\nno_such_setting = 1\n')
    keyed.hang_up()
    assert "nothing is reloaded: unknown setting no_such_setting" in keyed.front.text()
    assert (keyed.status(KEY), keyed.status(ADMIN)) == (200, 401)


# ---------------------------------------------------------------- secrets
def test_no_key_shows_in_logs_answers_or_process_arguments(keyed: Configured) -> None:
    keyed.write(f'api_key = "{KEY}"\nadmin_api_key = "{ADMIN}"\nlog_level = "debug"\n')
    keyed.hang_up()
    wait_for(lambda: keyed.status(ADMIN, "/server_info") == 200, 5, "the keys")
    front = keyed.front
    texts = [front.text()]
    with front.client(headers={"authorization": f"Bearer {ADMIN}"}) as client:
        paths = ("/server_info", "/get_server_info", "/model_info", "/get_internal_state", "/metrics", "/openapi.json")
        texts += [client.get(path).text for path in paths]
        texts += [client.get("/v1/models", headers={"authorization": f"Bearer {OTHER}"}).text]
    for process in [psutil.Process(front.process.pid), *psutil.Process(front.process.pid).children(recursive=True)]:
        texts += [" ".join(process.cmdline()), " ".join(process.environ().values())]
    assert len(texts) > 15
    assert [text[:80] for text in texts if KEY in text or ADMIN in text] == []


def test_settings_with_keys_are_for_our_eyes_only(keyed: Configured) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in keyed.front.run_dir.iterdir()}
    assert KEY in (keyed.front.run_dir / "settings.json").read_text()
    assert stat.S_IMODE(keyed.front.run_dir.stat().st_mode) == 0o700
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}


def test_no_process_listens_on_tcp_but_the_api(keyed: Configured) -> None:
    family = psutil.Process(keyed.front.process.pid).children(recursive=True)
    listening: dict[str, list[Any]] = {}
    for process in family:
        found = [c.laddr for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        if found:
            listening[" ".join(process.cmdline())] = found
    assert [("forebay_api" in command, len(found)) for command, found in listening.items()] == [(True, 1)]
