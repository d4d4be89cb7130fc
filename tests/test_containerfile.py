"""The image fits the code: its settings exist, what it copies is what the package is built from, it runs as nobody."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from forebay.cli import parser
from forebay.config import OTHER_VARIABLES, settings_table
from forebay.health_probe import SLACK
from forebay.settings import Settings

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "deploy" / "Containerfile").read_text().replace("\\\n", " ")
BUILD, LAST = TEXT.split("\nFROM ")[1:]
IGNORED = (ROOT / ".dockerignore").read_text().splitlines()


def test_every_variable_of_ours_is_a_setting() -> None:
    named = set(re.findall(r"\b(FOREBAY_[A-Z_]+)=", LAST))
    assert named
    assert named - OTHER_VARIABLES <= {f"FOREBAY_{name.upper()}" for name in settings_table()}


def test_what_is_copied_exists_is_let_through_and_is_all_that_the_package_needs() -> None:
    copied = {word for line in re.findall(r"(?m)^COPY (?!--)(.*) \S+$", BUILD) for word in line.split()}
    assert copied == {line.removeprefix("!") for line in IGNORED if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    assert {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"], *wheel} <= copied


def test_it_runs_as_a_user_by_number_and_holds_no_model() -> None:
    assert re.findall(r"(?m)^USER (.*)$", LAST) == ["10001:10001"]
    assert re.findall(r"(?m)^VOLUME (.*)$", LAST) == re.findall(r"FOREBAY_CACHE=(\S+)", LAST)
    assert "prepare" not in TEXT


def test_health_check_waits_as_long_as_the_probe_and_asks_with_a_command_that_exists() -> None:
    found = re.search(r'HEALTHCHECK .*--timeout=(\d+)s .*CMD \["forebay", "(\w+)"\]', LAST)
    assert found is not None
    assert float(found[1]) > Settings().health_timeout + SLACK
    assert parser().parse_args([found[2]]).path == "/health"
