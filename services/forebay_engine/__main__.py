"""`python -m forebay_engine`: one engine process. `python -m forebay_engine prepare`: its model, ahead of a start.

`prepare` writes one JSON line to stdout and its progress to stderr; a wrong model is one line and exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

import msgspec

from forebay import ForebayError
from forebay.lifetime import die_with_parent, parent_pid
from forebay.settings import Settings
from forebay_engine.cache import default_cache_dir


def prepare_command(arguments: Sequence[str]) -> int:
    """Prepare the model that the arguments name; returns the exit code."""
    parser = argparse.ArgumentParser(prog="forebay_engine prepare", description="Fetch and convert a model.")
    parser.add_argument("--model-path", help="model folder, .gguf file or hub repository; none: the packaged model")
    parser.add_argument("--engine-weights", default="f16", help="f16 (exact) or q8_0 (half the memory)")
    parser.add_argument("--context-length", type=int, help="longest prompt plus answer in tokens")
    parser.add_argument("--served-model-name", help="model name in answers; none: taken from the model")
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    try:
        die_with_parent(parent_pid(os.environ))
        facts = _prepare(msgspec.convert(given, Settings))
    except (ForebayError, msgspec.ValidationError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(json.dumps(facts, ensure_ascii=False))
    return 0


def _prepare(settings: Settings) -> dict[str, object]:
    # OpenVINO takes 0.2 s to import: only where a model is really wanted.
    from forebay_engine.model_facts import model_facts
    from forebay_engine.model_store import prepare

    folder = prepare(settings.model_path, default_cache_dir(os.environ), settings, _tell)
    return model_facts(folder, settings)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["prepare"]:
        sys.exit(prepare_command(sys.argv[2:]))
    # Only here: `prepare` needs no links.
    from forebay.role_main import main
    from forebay_engine.process import run

    sys.exit(main("engine", run, linked=False))
