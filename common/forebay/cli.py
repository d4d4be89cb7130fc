"""The `forebay` command and its words (serve, check, prepare, probe ...). Errors are one line that says what to do."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from forebay import affinity, config
from forebay._version import __version__
from forebay.errors import ForebayError, SettingsError
from forebay.flags import add_flags, given_flags, settings_page
from forebay.keys import load_keys, make_keys
from forebay.listen import client_url, settle_address
from forebay.settings import Settings
from forebay.topology import Topology

ABOUT = """\
forebay is the front of an LLM inference engine: it takes HTTP requests (OpenAI, native), renders chat templates,
tokenises, hands the ids to an engine, and streams the text of its answers. Each part is a process of its own.
"""
EXAMPLES = """\
examples:
  forebay serve                                  serve the packaged model on http://127.0.0.1:8000
  forebay serve --port 9000 --model-path DIR     serve a model folder, a .gguf file or a hub repository
  forebay serve --engine echo --tokenizers 2     no model: the prompt comes back; for tests and benchmarks
  forebay serve --config forebay.toml            settings from a file (forebay settings > forebay.toml)
  FOREBAY_PORT=9000 forebay serve                settings from the environment
  forebay check --cores 0-7                      what would run, and on which cores; starts nothing

A flag wins over the environment, the environment over the file. Ctrl-C stops everything.
"""


class Parser(argparse.ArgumentParser):
    """Errors become `SettingsError`, and a misspelt flag gets the nearest real one."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; `{self.prog} --help` lists the flags")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""

    def raw(prog: str) -> argparse.HelpFormatter:
        return argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=116)

    top = Parser(prog="forebay", description=ABOUT, epilog=EXAMPLES, formatter_class=raw, allow_abbrev=False)
    commands = top.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=Parser)

    def command(name: str, sentence: str, run: Callable[[argparse.Namespace], int], *, flags: bool) -> Parser:
        one = commands.add_parser(name, help=sentence, description=sentence, epilog=EXAMPLES, formatter_class=raw)
        one.allow_abbrev = False
        one.set_defaults(run=run)
        if flags:
            one.usage = f"forebay {name} [--config FILE] [FLAG ...]"
            one.add_argument(
                "--config", type=Path, metavar="FILE", help="settings file, .toml or .json [FOREBAY_CONFIG]"
            )
            add_flags(one)
        return one

    command("serve", "Start a front and its engine, and serve until Ctrl-C or SIGTERM.", serve, flags=True)
    command("check", "Check the settings and show the processes and their cores; starts nothing.", check, flags=True)
    command("prepare", "Fetch and convert the model now, and show the settings that name it.", prepare, flags=True)
    asked = command("probe", "Ask a running front whether it is well; exit code 0 or 1.", probe, flags=True)
    asked.add_argument("--path", default="/health", metavar="PATH", help="/health (default), /ready, /live or /ping")
    command("settings", "Print every setting with its default: a settings file to start from.", _settings, flags=False)
    keys = command("keys", "Make the keys of a front whose processes talk over TCP.", _keys, flags=False)
    keys.add_argument("folder", type=Path, metavar="DIR", help="folder for them, made if it is missing (mode 0700)")
    command("version", "Print the version.", _version, flags=False)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code: 0, 1 for a start that failed, 2 for a wrong setting or flag."""
    try:
        args = _parse(sys.argv[1:] if argv is None else argv)
        run: Callable[[argparse.Namespace], int] = args.run
        return run(args)
    except ForebayError as error:
        print(f"forebay: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    except KeyboardInterrupt:
        print("forebay: stopped", file=sys.stderr)
        return 130


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    top = parser()
    args, unknown = top.parse_known_args(argv)
    if unknown:
        flags = [setting.flag for setting in config.settings_table().values()]
        hint = config.nearest(unknown[0].partition("=")[0], [*flags, "--config"])
        raise SettingsError(f"unknown flag {unknown[0]}{hint}; `forebay serve --help` lists the flags")
    if args.command is None:
        top.print_help()
        raise SystemExit(0)
    return args


def settings_of(args: argparse.Namespace) -> Settings:
    """The settings of a command line: file, environment and flags together."""
    named = os.environ.get("FOREBAY_CONFIG")
    path = args.config or (Path(named) if named else None)
    return config.load(config=path, environ=os.environ, overrides=given_flags(args))


def core_plan(settings: Settings) -> affinity.CorePlan:
    """The plan of these settings on this machine; raises `SettingsError`."""
    counts = (settings.apis, settings.tokenizers, settings.detokenizers)
    return affinity.plan(affinity.allowed_cores(), *counts, settings.cores)


def serve(args: argparse.Namespace) -> int:
    """`forebay serve`."""
    from forebay.serving import serve_front

    from_file = args.config is not None or bool(os.environ.get("FOREBAY_CONFIG"))
    return serve_front(settings_of(args), (lambda: settings_of(args)) if from_file else None)


def check(args: argparse.Namespace) -> int:
    """`forebay check`: settings that differ from the defaults, address, processes and cores."""
    settings = settings_of(args)
    plan = core_plan(settings)
    table = config.settings_table()
    changed = {n: v for n, v in config.public_view(settings).items() if v != table[n].default}
    secrets = [n for n, setting in table.items() if setting.row.secret and getattr(settings, n) is not None]
    print(f"settings   {', '.join(f'{n}={v!r}' for n, v in changed.items()) or 'all defaults'}")
    print(f"keys       {', '.join(secrets) or 'none: everybody who reaches the address may use it'}")
    print(f"address    {settings.uds or client_url(settle_address(settings))} (free)")
    print(f"cores      {plan.reason}")
    topology = Topology.of(settings, Path("/"))
    if settings.keys_dir is not None:
        load_keys(settings.keys_dir)
    for peer in topology.processes():
        note = f" at {topology.endpoints[str(peer)]}" if str(peer) in topology.endpoints else ""
        note += " (started elsewhere)" if peer.role == "engine" and settings.engine == "none" else ""
        print(f"  {peer!s:16} {affinity.show_cores(plan.of(peer)) or 'not pinned'}{note}")
    return 0


def prepare(args: argparse.Namespace) -> int:
    """`forebay prepare`: what a settings file for the systemd units needs to name."""
    from forebay.serving import prepare_model

    settings = prepare_model(settings_of(args))
    for name in ("model_path", "tokenizer_path", "served_model_name"):
        print(f"{name} = {json.dumps(getattr(settings, name) or 'none', ensure_ascii=False)}")
    return 0


def probe(args: argparse.Namespace) -> int:
    """`forebay probe`: with `run_dir`, the front that runs there; else the one at the address of the settings."""
    from forebay.health_probe import ask

    print(ask(settings_of(args), args.path) or "ok")
    return 0


def _settings(args: argparse.Namespace) -> int:
    print(settings_page(), end="")
    return 0


def _keys(args: argparse.Namespace) -> int:
    path = make_keys(args.folder)
    print(f"{path}\ncopy it to every host of the front, readable by its user alone, and set keys_dir")
    return 0


def _version(args: argparse.Namespace) -> int:
    print(f"forebay {__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
