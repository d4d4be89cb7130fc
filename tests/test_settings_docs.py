"""The table of settings is the only one: the struct, the page for operators and the flags have the same names."""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path

from forebay.config import load, settings_table
from forebay.flags import add_flags, given_flags, settings_page
from forebay.settings import TABLE, Settings

PAGE = Path(__file__).parents[1] / "deploy" / "forebay.toml"


def test_every_field_has_one_row_in_the_table() -> None:
    rows = [name for section in TABLE.values() for name in section]
    assert sorted(rows) == sorted(Settings.__struct_fields__)


def test_every_sentence_ends_with_a_full_stop() -> None:
    assert [s.name for s in settings_table().values() if not s.row.sentence.endswith(".")] == []


def test_the_page_in_deploy_is_what_the_table_says() -> None:
    assert PAGE.read_text() == settings_page(), "make it again: forebay settings > deploy/forebay.toml"


def test_the_page_with_every_line_uncommented_is_the_defaults(tmp_path: Path) -> None:
    active = "".join(f"{line}\n" for line in re.findall(r"(?m)^# ([a-z_]+ = .*)$", settings_page()))
    path = tmp_path / "all.toml"
    path.write_text(active)
    assert set(tomllib.loads(active)) == set(settings_table())
    assert load(config=path, environ={}, overrides={}) == Settings()


def test_every_setting_has_a_flag() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    flags = {option for action in parser._actions for option in action.option_strings}
    assert {setting.flag for setting in settings_table().values()} <= flags


def test_only_flags_that_were_given_override() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    given = parser.parse_args(["--port", "1", "--no-warmup"])
    assert given_flags(given) == {"port": "1", "warmup": False}
