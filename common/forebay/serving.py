"""`forebay serve`: checks what is quick to check, prepares the model, runs the supervisor, says where to connect."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import msgspec

from forebay import affinity, logs
from forebay.child import role_specs
from forebay.errors import SettingsError, StartError
from forebay.lifetime import PARENT_PID
from forebay.listen import client_url, settle_address
from forebay.orphans import is_process_one
from forebay.rundir import lock_front, open_run_dir
from forebay.settings import Settings
from forebay.supervisor import Supervisor, log


class Prepared(msgspec.Struct):
    """The line that `python -m forebay_engine prepare` prints."""

    model_dir: str
    tokenizer_path: str | None = None
    served_model_name: str | None = None


def serve_front(settings: Settings, read: Callable[[], Settings] | None = None) -> int:
    """Serve until a stop signal; returns the exit code. Raises `SettingsError` or `StartError`, leaving nothing.

    `read`: reads the settings again, from the file that they came from (SIGHUP).
    """
    if is_process_one():  # the kernel drops a signal to it for which there is no handler; the supervisor sets its own
        signal.signal(signal.SIGTERM, _interrupt)
    counts = (settings.apis, settings.tokenizers, settings.detokenizers)
    plan = affinity.plan(affinity.allowed_cores(), *counts, settings.cores)
    check_files(settings)
    settings = settle_address(settings)
    run_dir = open_run_dir(settings.run_dir)
    try:
        lock_front(run_dir.path).release()
        logs.set_up("supervisor", settings.log_level, settings.log_format)
        settings = prepare_model(settings)
        log.info("run folder %s, cores: %s", run_dir.path, plan.describe())
        roles = role_specs(settings, run_dir)
        return Supervisor(settings, run_dir, roles, on_ready=lambda: announce(settings), read=read).run()
    finally:
        run_dir.close()


def check_files(settings: Settings) -> None:
    """Raise `SettingsError` for a file or folder that a setting names and that is not there."""
    if settings.chat_template is not None and not Path(settings.chat_template).is_file():
        raise SettingsError(f"chat_template: there is no file {settings.chat_template}")
    for name in ("tls_certfile", "tls_keyfile"):
        path = getattr(settings, name)
        if path is not None and not Path(path).is_file():
            raise SettingsError(f"{name}: there is no file {path}")
    if settings.tokenizer_path is not None and not Path(settings.tokenizer_path).exists():
        raise SettingsError(f"tokenizer_path: there is no folder {settings.tokenizer_path}")


def prepare_model(settings: Settings) -> Settings:
    """The settings with a local model folder, its tokenizer and its name, fetched and converted now if need be.

    The work is done by a process of the engine's package, which shows its progress on standard error. Without a model
    to prepare (no engine, or echo with a tokenizer of its own) the settings come back as they are.
    """
    if settings.engine == "none" or (settings.engine == "echo" and settings.tokenizer_path is not None):
        return settings
    command = [sys.executable, "-m", "forebay_engine", "prepare", "--engine-weights", settings.engine_weights]
    if settings.model_path is not None:
        command += ["--model-path", settings.model_path]
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=_environ(), check=False)  # noqa: S603
    finally:
        signal.signal(signal.SIGTERM, before)
    if done.returncode != 0:
        raise StartError(f"the model could not be prepared (exit code {done.returncode}; the reason stands above)")
    try:
        found = msgspec.json.decode(done.stdout.strip().rpartition(b"\n")[2], type=Prepared)
    except msgspec.DecodeError as error:
        raise StartError(f"the model was prepared, but the answer cannot be read: {error}") from error
    return msgspec.structs.replace(
        settings,
        model_path=found.model_dir,
        tokenizer_path=settings.tokenizer_path or found.tokenizer_path,
        served_model_name=settings.served_model_name or found.served_model_name,
    )


def _environ() -> dict[str, str]:
    return {**os.environ, "PYTHONSAFEPATH": "1", PARENT_PID: str(os.getpid())}


def _interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM before the supervisor runs ends us, and with us the process that prepares the model, as Ctrl-C does."""
    raise KeyboardInterrupt


def announce(settings: Settings) -> None:
    """The ready line, and a command to try it with."""
    url = client_url(settings)
    name = settings.served_model_name or "default"
    where = f"unix:{settings.uds}" if settings.uds is not None else url
    print(f"forebay is ready at {where} (model {name})")
    print(f"  {curl_line(settings, url, name)}", flush=True)


def curl_line(settings: Settings, url: str, name: str) -> str:
    """A shell command that asks the chat route; with a key it uses $FOREBAY_API_KEY, never the key itself."""
    body = {"model": name, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    words = ["curl", "-s"]
    if settings.uds is not None:
        words += ["--unix-socket", shlex.quote(settings.uds)]
    if settings.tls_certfile is not None:
        words += ["--cacert", shlex.quote(settings.tls_certfile)]
    words += [f"{url}/v1/chat/completions", "-H", "'Content-Type: application/json'"]
    if settings.api_key is not None:
        words += ["-H", '"Authorization: Bearer $FOREBAY_API_KEY"']
    return " ".join([*words, "-d", shlex.quote(json.dumps(body))])
