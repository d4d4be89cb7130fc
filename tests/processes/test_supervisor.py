"""The supervisor with real processes: start, failure, restart, ordered stop, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from forebay.child import child_environment, role_specs
from forebay.notify import NotifyInbox
from forebay.rundir import RunDir
from forebay.settings import Settings
from tests.helpers.tied import tied

HERE = Path(__file__).parent
ALL = {"api-0": "ready", "tokenizer-0": "ready", "detokenizer-0": "ready", "engine-0": "ready"}


class Front:
    """A supervisor process over fake roles, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.events_file = folder / "events"
        self.process: subprocess.Popen[str]

    def start(
        self,
        roles: dict[str, str],
        environ: dict[str, str] | None = None,
        python: str = sys.executable,
        **settings: object,
    ) -> Front:
        commands = {
            name: [python, "-S", str(HERE / "fake_role.py"), str(self.events_file), name, *words.split()]
            for name, words in roles.items()
        }
        if any("lifetime" in words for words in roles.values()):
            commands = {name: [part for part in command if part != "-S"] for name, command in commands.items()}
        driver = [sys.executable, str(HERE / "drive_supervisor.py"), str(self.run_dir)]
        with (self.folder / "stderr").open("a") as errors:
            self.process = subprocess.Popen(
                tied([*driver, json.dumps({"drain_timeout": 1.0, **settings}), json.dumps(commands)]),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **(environ or {})},
                start_new_session=True,
            )
        return self

    def until_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.errors()

    def events(self) -> list[str]:
        return self.events_file.read_text().splitlines() if self.events_file.exists() else []

    def pids(self, name: str = "") -> list[int]:
        """Every pid that the fake roles told, in order."""
        told = [line.split() for line in self.events()]
        return [int(words[2]) for words in told if words[1] == "started" and words[0].startswith(name)]

    def errors(self) -> str:
        return (self.folder / "stderr").read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 15) -> int:
        return self.process.wait(seconds)

    def end(self) -> None:
        """Stop it if it still runs."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(15)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def living(self) -> list[int]:
        return [pid for pid in self.pids() if is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)


@pytest.fixture
def front() -> Iterator[Front]:
    """A front that must leave nothing: no process, no file in the run folder."""
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        made = Front(Path(folder))
        yield made
        made.end()
        leftover = made.living()
        for pid in leftover:
            os.kill(pid, signal.SIGKILL)
        assert leftover == [], made.errors()
        assert not made.run_dir.exists() or list(made.run_dir.iterdir()) == [], made.errors()


# -------------------------------------------------------------------- start
def test_ready_comes_when_every_process_is_ready(front: Front) -> None:
    front.start(ALL).until_ready()
    assert len(front.living()) == 4


def test_processes_are_in_sessions_of_their_own_so_that_ctrl_c_reaches_the_supervisor_alone(front: Front) -> None:
    front.start(ALL).until_ready()
    assert {os.getsid(pid) for pid in front.pids()} == set(front.pids())


def test_process_that_fails_while_starting_ends_the_start_with_its_last_lines(front: Front) -> None:
    began = time.monotonic()
    front.start({**ALL, "engine-0": "", "detokenizer-0": "fail"})
    assert front.wait() == 1
    assert time.monotonic() - began < 5
    assert "error: detokenizer-0 ended with exit code 3 while starting" in front.errors()
    assert front.errors().rstrip().endswith("  no tokenizer.json in /nowhere")


@pytest.mark.parametrize("victim", ["api-0", "engine-0"])
def test_any_process_killed_while_the_others_start_ends_the_start(front: Front, victim: str) -> None:
    front.start({**ALL, "tokenizer-0": "", victim: ""})
    until(lambda: len(front.pids()) == 4)
    os.kill(front.pids(victim)[0], signal.SIGKILL)
    assert front.wait() == 1
    assert f"{victim} ended with signal SIGKILL while starting" in front.errors()


def test_process_that_is_never_ready_ends_the_start_at_start_timeout(front: Front) -> None:
    front.start({**ALL, "engine-0": ""}, start_timeout=1.0)
    assert front.wait() == 1
    assert "not ready within start_timeout (1 s): engine-0" in front.errors()


def test_command_that_cannot_be_run_is_a_start_error(front: Front) -> None:
    front.start({"api-0": "ready"}, python="/no/such/python")
    assert front.wait() == 1
    assert "error: api-0 cannot be started (/no/such/python)" in front.errors()


def test_second_front_in_the_same_folder_is_refused_and_harms_nothing(front: Front) -> None:
    front.start(ALL).until_ready()
    driver = [sys.executable, str(HERE / "drive_supervisor.py"), str(front.run_dir), "{}", "{}"]
    second = subprocess.run(driver, capture_output=True, text=True, timeout=20, check=False)
    assert second.returncode == 1
    assert f"(process {front.process.pid}, " in second.stderr
    assert (front.run_dir / "settings.json").exists()


def test_what_a_process_writes_reaches_standard_error(front: Front) -> None:
    front.start({"api-0": "ready", "engine-0": "fail"})
    assert front.wait() == 1
    assert "\nno tokenizer.json in /nowhere\n" in front.errors()


# -------------------------------------------------------------------- restart
def test_process_that_dies_is_started_again_and_the_others_live_on(front: Front) -> None:
    front.start(ALL).until_ready()
    before = front.living()
    os.kill(front.pids("tokenizer")[0], signal.SIGKILL)
    until(lambda: len(front.pids("tokenizer")) == 2)
    assert set(before) - {front.pids("tokenizer")[0]} <= set(front.living())
    assert "tokenizer-0 ended with signal SIGKILL; it is started again in 0.1 s" in front.errors()


def test_process_that_dies_too_often_stops_everything_with_exit_code_one(front: Front) -> None:
    front.start(ALL, restart_limit=1).until_ready()
    os.kill(front.pids("tokenizer")[0], signal.SIGKILL)
    until(lambda: len(front.pids("tokenizer")) == 2)
    os.kill(front.pids("tokenizer")[1], signal.SIGKILL)
    assert front.wait() == 1
    assert "too often" in front.errors()


def test_restarted_process_that_does_not_get_ready_is_killed_and_tried_again(front: Front) -> None:
    front.start({"api-0": "ready", "engine-0": f"ready-once={front.folder / 'flag'}"}, start_timeout=2.0).until_ready()
    os.kill(front.pids("engine")[0], signal.SIGKILL)
    until(lambda: len(front.pids("engine")) == 3)
    assert "engine-0 was not ready within start_timeout and is killed" in front.errors()


def test_child_of_a_process_that_died_goes_with_it(front: Front) -> None:
    front.start({"api-0": "ready", "engine-0": "ready orphan"}).until_ready()
    leader, orphan = front.pids("engine")[:2]
    os.kill(leader, signal.SIGKILL)
    until(lambda: not is_running(orphan))


# -------------------------------------------------------------------- stop
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_stops_everything_in_order_with_exit_code_zero(front: Front, number: signal.Signals) -> None:
    front.start(ALL).until_ready()
    began = time.monotonic()
    front.signal(number)
    assert front.wait() == 0
    assert time.monotonic() - began < 3
    assert [line for line in front.events() if line.endswith("stopping")] == [f"{name} stopping" for name in ALL]


def test_api_processes_may_drain_before_the_others_are_told(front: Front) -> None:
    front.start({**ALL, "api-0": "ready drain=0.8"}).until_ready()
    front.signal(signal.SIGTERM)
    until(lambda: "api-0 stopping" in front.events())
    assert [line for line in front.events() if line.endswith("stopping")] == ["api-0 stopping"]
    assert front.wait() == 0


def test_process_that_ignores_the_stop_is_killed_within_the_budget(front: Front) -> None:
    front.start({**ALL, "detokenizer-0": "ready stubborn"}, drain_timeout=0.0).until_ready()
    front.signal(signal.SIGTERM)
    assert front.wait(8) == 0
    assert "detokenizer-0 did not stop in time" in front.errors()


def test_second_signal_ends_everything_at_once_with_exit_code_one(front: Front) -> None:
    front.start({**ALL, "api-0": "ready stubborn", "engine-0": "ready stubborn"}, drain_timeout=60.0).until_ready()
    front.signal(signal.SIGINT)
    until(lambda: "api-0 stopping" in front.events())
    began = time.monotonic()
    front.signal(signal.SIGINT)
    assert front.wait(5) == 1
    assert time.monotonic() - began < 2


def test_signal_during_the_start_stops_it(front: Front) -> None:
    front.start({**ALL, "engine-0": ""})
    until(lambda: len(front.pids()) == 4)
    front.signal(signal.SIGTERM)
    assert front.wait() == 0


def test_signal_while_a_process_waits_for_its_restart_stops_everything(front: Front) -> None:
    front.start(ALL).until_ready()
    os.kill(front.pids("api")[0], signal.SIGKILL)
    front.signal(signal.SIGTERM)
    assert front.wait() == 0


# -------------------------------------------------------------------- parents
def test_processes_end_with_a_killed_supervisor_and_the_folder_can_be_used_again(front: Front) -> None:
    words = {name: f"{words} lifetime" for name, words in ALL.items()}
    front.start(words).until_ready()
    front.process.kill()
    front.wait()
    until(lambda: front.living() == [], 5)
    assert sum(line.endswith("stopping") for line in front.events()) == 4  # each was told once, and could finish
    front.end()
    front.start(ALL).until_ready()
    front.signal(signal.SIGTERM)
    assert front.wait() == 0


def test_supervisor_stops_when_the_process_that_wants_it_ends(front: Front) -> None:
    wanting = subprocess.Popen(tied(["sleep", "60"]))
    front.start(ALL, {"FOREBAY_PARENT_PID": str(wanting.pid)}).until_ready()
    wanting.kill()
    wanting.wait()
    assert front.wait() == 0


def test_supervisor_tells_its_own_service_manager_what_happens(front: Front) -> None:
    inbox = NotifyInbox(front.folder / "manager.sock")
    front.start(ALL, {"NOTIFY_SOCKET": str(inbox.path)}).until_ready()
    front.signal(signal.SIGTERM)
    front.wait()
    fields = [notice.fields for notice in inbox.receive() if notice.pid == front.process.pid]
    inbox.close()
    assert fields == [{"STATUS": "starting", "X_FOREBAY": "started"}, {"READY": "1"}, {"STOPPING": "1"}]


# -------------------------------------------------------------------- pure
def test_settings_and_managers_of_our_own_start_do_not_reach_a_process() -> None:
    ours = {"FOREBAY_PORT": "1", "NOTIFY_SOCKET": "x", "WATCHDOG_USEC": "5", "PATH": "/bin"}
    made = child_environment(ours, "/run/n", 7)
    assert {name for name in ours if made.get(name) == ours[name]} == {"PATH"}
    assert (made["NOTIFY_SOCKET"], made["FOREBAY_PARENT_PID"]) == ("/run/n", "7")


def test_tokenizers_parallelism_is_set_only_where_it_is_unset() -> None:
    assert child_environment({}, "", 1)["TOKENIZERS_PARALLELISM"] == "false"
    assert child_environment({"TOKENIZERS_PARALLELISM": "true"}, "", 1)["TOKENIZERS_PARALLELISM"] == "true"


def test_every_role_runs_its_module_with_its_number_and_the_settings_file(tmp_path: Path) -> None:
    specs = role_specs(Settings(tokenizers=2), RunDir(tmp_path, made=False))
    assert [str(spec.peer) for spec in specs] == ["api-0", "tokenizer-0", "tokenizer-1", "detokenizer-0", "engine-0"]
    where = ("--run-dir", str(tmp_path), "--config", str(tmp_path / "settings.json"))
    assert specs[2].command == (sys.executable, "-m", "forebay_tokenizer", "--index", "1", *where)


def test_without_an_engine_only_the_services_are_started(tmp_path: Path) -> None:
    specs = role_specs(Settings(engine="none"), RunDir(tmp_path, made=False))
    assert "engine" not in {spec.peer.role for spec in specs}
