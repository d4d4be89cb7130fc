"""The command line and the whole life of one role's process: `python -m forebay_api` and the others."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from forebay.config import load
from forebay.errors import ForebayError, SettingsError
from forebay.lifetime import die_with_parent, parent_pid
from forebay.logs import set_up
from forebay.role import Role
from forebay.settings import Settings
from forebay.topology import Peer


def arguments(role: str, argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of a role: which one of its kind it is, and where its front lives."""
    parser = argparse.ArgumentParser(
        prog=f"python -m forebay_{role}", description=f"The {role} process of a forebay front; usually started for you."
    )
    parser.add_argument("--index", type=int, default=0, help="number of this process among those of its role (0)")
    parser.add_argument("--run-dir", help="folder of sockets and locks that all processes of one front share")
    parser.add_argument("--config", type=Path, help="settings file, .toml or .json (FOREBAY_CONFIG)")
    return parser.parse_args(argv)


def settings_for(args: argparse.Namespace, environ: Mapping[str, str]) -> tuple[Settings, Path]:
    """The settings of this process and its run folder; raises `SettingsError`."""
    config = args.config or (Path(environ["FOREBAY_CONFIG"]) if environ.get("FOREBAY_CONFIG") else None)
    overrides = {} if args.run_dir is None else {"run_dir": args.run_dir}
    settings = load(config=config, environ=environ, overrides=overrides)
    if settings.run_dir is None:
        raise SettingsError("run_dir: a single process needs the folder that it shares with the others: --run-dir")
    return settings, Path(settings.run_dir)


def main(role: str, run: Callable[[Role], None], argv: Sequence[str] | None = None, *, linked: bool = True) -> int:
    """The whole life of a role's process; returns its exit code. Errors are one line on standard error."""
    args = arguments(role, argv)
    me = Peer(role, args.index)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.umask(0o077)
    try:
        die_with_parent(parent_pid(os.environ))
        settings, run_dir = settings_for(args, os.environ)
        set_up(str(me), settings.log_level, settings.log_format)
        with Role.open(me, settings, run_dir, linked=linked) as opened:
            opened.on_signals()
            opened.reload_from(lambda: settings_for(args, os.environ)[0])
            run(opened)
    except ForebayError as error:
        print(f"forebay {me}: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    except KeyboardInterrupt:
        return 130
    return 0
