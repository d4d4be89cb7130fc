"""Settings: which source wins, what is refused and in which words, what may be shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.config import Settings, load, public_view, save, settings_table
from forebay.errors import SettingsError


def loaded(environ: dict[str, str] | None = None, config: Path | None = None, **overrides: Any) -> Settings:
    return load(config=config, environ=environ or {}, overrides=overrides)


def refusal(environ: dict[str, str] | None = None, config: Path | None = None, **overrides: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        loaded(environ, config, **overrides)
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "forebay.toml"
    path.write_text('port = 1\napis = 2\nmax_body_bytes = "2MiB"\ndefault_max_new_tokens = "none"\n')
    return path


def test_without_any_source_every_setting_has_its_default() -> None:
    assert loaded() == Settings()


def test_file_wins_over_default(file: Path) -> None:
    assert loaded(config=file).apis == 2


def test_environment_wins_over_file(file: Path) -> None:
    assert loaded({"FOREBAY_PORT": "2"}, file).port == 2


def test_flag_wins_over_environment() -> None:
    assert loaded({"FOREBAY_PORT": "2"}, port="3").port == 3


def test_value_of_another_type_than_text_is_taken_as_it_is() -> None:
    assert loaded(preferred_sampling_params={"top_p": 0.5}).preferred_sampling_params == {"top_p": 0.5}


def test_variables_of_other_programs_are_not_ours() -> None:
    assert loaded({"PORT": "2", "XFOREBAY_PORT": "3", "FOREBAY": "1"}) == Settings()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("log_requests", "yes", True),
        ("warmup", "OFF", False),
        ("drain_timeout", "2", 2.0),
        ("max_body_bytes", "65536", 65536),
        ("max_body_bytes", "3 MiB", 3 << 20),
        ("max_body_bytes", "1gb", 10**9),
        ("default_max_new_tokens", "none", None),
        ("run_dir", "", None),
        ("cores", "None", None),
        ("engine", "none", "none"),
        ("default_chat_template_kwargs", '{"a": [1]}', {"a": [1]}),
        ("served_model_name", "12", "12"),
    ],
)
def test_text_of_a_flag_becomes_the_type_of_its_setting(name: str, text: str, value: object) -> None:
    assert getattr(loaded(None, None, **{name: text}), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "x"),
        ("port", "8000.5"),
        ("port", -1),
        ("port", 65536),
        ("port", True),
        ("apis", 0),
        ("drain_timeout", "inf"),
        ("drain_timeout", "nan"),
        ("start_timeout", 0),
        ("log_requests", "maybe"),
        ("log_requests", 1),
        ("log_level", "loud"),
        ("max_body_bytes", "3 miles"),
        ("preferred_sampling_params", "[1]"),
        ("preferred_sampling_params", "{"),
        ("host", None),
        ("host", ""),
    ],
)
def test_wrong_value_is_refused_under_the_name_of_its_setting(name: str, value: object) -> None:
    assert refusal(None, None, **{name: value}).startswith(f"{name}: ")


def test_refusal_says_value_source_and_what_is_valid() -> None:
    text = refusal({"FOREBAY_PORT": "http"})
    assert text == (
        "port: 'http' in the environment (FOREBAY_PORT) is not valid; it must be a whole number from 0 to 65535"
    )


def test_quoted_number_in_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('port = "8000"')
    assert f"in {path}" in refusal(None, path)


@pytest.mark.parametrize("kind", ["file", "environment", "flag"])
def test_unknown_name_is_refused_with_the_nearest_one(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"served_modelname": "x"}')
    text = {
        "file": lambda: refusal(None, path),
        "environment": lambda: refusal({"FOREBAY_SERVED_MODELNAME": "x"}),
        "flag": lambda: refusal(None, None, served_modelname="x"),
    }[kind]()
    assert "did you mean" in text
    assert "served_model_name" in text.lower()


@pytest.mark.parametrize(
    ("name", "text"), [("s.toml", "port ="), ("s.json", "[1]"), ("s.yaml", ""), ("none.toml", None)]
)
def test_unreadable_file_is_refused_by_name(name: str, text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    assert str(tmp_path / name) in refusal(None, tmp_path / name)


def test_empty_key_is_refused_since_it_would_open_the_door() -> None:
    assert "api_key" in refusal({"FOREBAY_API_KEY": ""})


def test_refusal_does_not_show_a_secret() -> None:
    assert "hunter2" not in refusal(None, None, api_key=["hunter2"])


def test_unix_socket_with_several_api_processes_is_refused() -> None:
    assert refusal(uds="/tmp/x", apis=2).startswith("uds: ")


def test_public_view_has_every_setting_but_the_secrets() -> None:
    view = public_view(loaded(api_key="a", admin_api_key="b"))
    assert set(view) == set(settings_table()) - {"api_key", "admin_api_key"}


def test_public_view_leaves_out_keys_inside_tables() -> None:
    view = public_view(loaded(default_chat_template_kwargs={"hub_token": "x", "tone": "y"}))
    assert view["default_chat_template_kwargs"] == {"tone": "y"}


def test_saved_settings_load_equal_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    settings = loaded(api_key="a", default_max_new_tokens=None, preferred_sampling_params={"top_k": 3})
    save(settings, path)
    assert loaded(config=path) == settings
    assert path.stat().st_mode & 0o777 == 0o600
