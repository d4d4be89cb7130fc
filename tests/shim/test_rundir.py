"""The run folder: private, short enough, locked; what is stale goes, what is not ours stays."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.errors import StartError
from forebay.rundir import Lock, clear_socket, clear_stale, lock_front, lock_process, open_run_dir
from forebay.topology import Peer, Topology, socket_path

API = Peer("api", 0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private folder with a path short enough for sockets."""
    made = open_run_dir(None)
    yield made.path
    for entry in made.path.iterdir():
        entry.unlink()
    made.path.rmdir()


def dead_socket(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> None:
    with socket.socket(socket.AF_UNIX, kind) as left_behind:
        left_behind.bind(str(path))


def test_folder_without_a_name_is_private_and_removed_at_the_end() -> None:
    made = open_run_dir(None)
    assert made.path.stat().st_mode & 0o777 == 0o700
    made.close()
    assert not made.path.exists()


def test_runtime_folder_of_the_user_is_preferred(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    made = open_run_dir(None)
    made.close()
    assert made.path.parent == folder


def test_runtime_folder_that_is_too_long_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    made = open_run_dir(None)
    made.close()
    assert made.path.parent != long


def test_missing_folder_is_made_private_and_removed_at_the_end(folder: Path) -> None:
    made = open_run_dir(str(folder / "run"))
    assert made.path.stat().st_mode & 0o777 == 0o700
    made.close()
    assert not made.path.exists()


def test_folder_that_was_there_stays(folder: Path) -> None:
    open_run_dir(str(folder)).close()
    assert folder.is_dir()


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
def test_folder_that_others_can_enter_is_refused_with_the_remedy(folder: Path, mode: int) -> None:
    (folder / "open").mkdir()
    (folder / "open").chmod(mode)
    with pytest.raises(StartError, match=rf"mode 0{mode:o}.*chmod 700"):
        open_run_dir(str(folder / "open"))
    (folder / "open").rmdir()


def test_folder_of_somebody_else_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(StartError, match="belongs to user"):
        open_run_dir(str(folder))


def test_file_in_place_of_the_folder_is_refused(folder: Path) -> None:
    (folder / "run").touch()
    with pytest.raises(StartError, match="is a file"):
        open_run_dir(str(folder / "run"))


def test_folder_without_a_parent_is_refused(folder: Path) -> None:
    with pytest.raises(StartError, match="cannot be made"):
        open_run_dir(str(folder / "a" / "b"))


def test_too_long_path_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 150)
    with pytest.raises(StartError, match=r"107.*--run-dir"):
        open_run_dir(str(path))
    assert not path.exists()


def test_every_address_fits_in_the_longest_folder_that_is_allowed(folder: Path) -> None:
    longest = folder / ("x" * (107 - len("/detokenizer-99.sock") - len(str(folder)) - 1))
    made = open_run_dir(str(longest))
    made.close()
    assert Topology(longest, detokenizers=64).address(Peer("detokenizer", 63)).endswith("detokenizer-63.sock")
    with pytest.raises(StartError, match="too long"):
        open_run_dir(f"{longest}x")


def test_second_lock_names_the_process_that_has_the_first(folder: Path) -> None:
    with lock_front(folder), pytest.raises(StartError, match=f"process {os.getpid()}, "):
        lock_front(folder)


def test_lock_is_free_again_after_release_and_its_file_gone(folder: Path) -> None:
    lock_process(folder, API).release()
    assert list(folder.iterdir()) == []
    lock_process(folder, API).release()


def test_lock_of_a_killed_process_is_free(folder: Path) -> None:
    code = (
        "import sys, os; from pathlib import Path; from forebay.rundir import lock_front\n"
        "lock_front(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=False, timeout=20)
    assert (folder / "supervisor.lock").exists()
    lock_front(folder).release()


def test_lock_file_that_was_replaced_is_not_taken_for_ours(folder: Path) -> None:
    first = Lock(folder / "x.lock")
    (folder / "x.lock").unlink()
    second = Lock(folder / "x.lock")
    assert second.path.exists()
    second.release()
    first.release()


def test_socket_of_a_dead_process_is_removed(folder: Path) -> None:
    dead_socket(socket_path(folder, API))
    clear_stale(folder, [API])
    assert not socket_path(folder, API).exists()


def test_socket_that_somebody_listens_on_stays(folder: Path) -> None:
    path = folder / "api-0.sock"
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(path))
        live.listen()
        with pytest.raises(StartError, match="another process listens"):
            clear_socket(path)
    assert path.exists()


def test_regular_file_in_the_way_is_an_error_and_stays(folder: Path) -> None:
    path = socket_path(folder, API)
    path.write_text("notes")
    with pytest.raises(StartError, match="is no socket"):
        clear_stale(folder, [API])
    assert path.read_text() == "notes"


def test_close_removes_what_dead_processes_left_and_nothing_else(folder: Path) -> None:
    dead_socket(folder / "api-0.sock")
    dead_socket(folder / "notify.sock", socket.SOCK_DGRAM)
    dead_socket(folder / "other.sock")
    for name in ("settings.json", "tokenizer-1.lock", "other.lock", "notes.txt"):
        (folder / name).touch()
    open_run_dir(str(folder)).close()
    assert sorted(entry.name for entry in folder.iterdir()) == ["notes.txt", "other.lock", "other.sock"]


def test_close_keeps_the_lock_of_a_living_process(folder: Path) -> None:
    with lock_process(folder, API):
        open_run_dir(str(folder)).close()
        assert (folder / "api-0.lock").exists()


def test_close_touches_nothing_while_another_front_runs_there(folder: Path) -> None:
    (folder / "settings.json").touch()
    with lock_front(folder):
        open_run_dir(str(folder)).close()
        assert (folder / "settings.json").exists()
