"""The `forebay` command without starting anything: help, errors, check, and the line to copy."""

from __future__ import annotations

import json
import shlex

import pytest

from forebay._version import __version__
from forebay.cli import main
from forebay.config import settings_table
from forebay.serving import curl_line
from forebay.settings import Settings


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    return (code, *capsys.readouterr())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "version") == (0, f"forebay {__version__}\n", "")


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["serve", "--prot", "1"], "did you mean --port?"),
        (["serve", "--port=http"], "--port"),
        (["serve", "--port"], "--port"),
        (["check", "--cores", "engine=9999"], "cores"),
        (["check", "--config", "/no/such.toml"], "/no/such.toml"),
        (["sevre"], "sevre"),
    ],
)
def test_wrong_command_line_is_one_line_and_exit_code_two(
    capsys: pytest.CaptureFixture[str], argv: list[str], word: str
) -> None:
    code, out, errors = run(capsys, *argv)
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("forebay: error: ")
    assert word in errors


def test_flag_is_not_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "check", "--por", "0")[0] == 2


def test_help_of_serve_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = capsys.readouterr().out
    assert [s.flag for s in settings_table().values() if f"{s.flag} " not in text and f"{s.flag}," not in text] == []


def test_check_shows_every_process_and_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "check", "--port", "0", "--tokenizers", "2", "--api-key", "hunter2")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if line.startswith("  ")] == [
        "api-0",
        "tokenizer-0",
        "tokenizer-1",
        "detokenizer-0",
        "engine-0",
    ]
    assert "hunter2" not in out


def test_check_reads_the_file_that_the_environment_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("c") / "forebay.toml"
    path.write_text("port = 0\napis = 3\n")
    monkeypatch.setenv("FOREBAY_CONFIG", str(path))
    assert "apis=3" in run(capsys, "check")[1]


def test_curl_line_is_a_shell_command_with_a_json_body() -> None:
    words = shlex.split(curl_line(Settings(), "http://127.0.0.1:8000", "it's"))
    assert words[:3] == ["curl", "-s", "http://127.0.0.1:8000/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == "it's"


def test_curl_line_names_the_variable_of_the_key_and_not_the_key() -> None:
    line = curl_line(Settings(api_key="hunter2"), "http://x", "m")
    assert '"Authorization: Bearer $FOREBAY_API_KEY"' in line
    assert "hunter2" not in line
