"""Runs a `Supervisor` over fake roles, for the tests: `drive_supervisor.py RUN_DIR SETTINGS ROLES` (both JSON).

ROLES maps the name of a process (`api-0`) to its command. Prints `ready` when the supervisor says so.
"""

from __future__ import annotations

import json
import logging
import os
import sys

from forebay.child import RoleSpec
from forebay.config import load
from forebay.errors import StartError
from forebay.lifetime import parent_pid
from forebay.rundir import open_run_dir
from forebay.supervisor import Supervisor
from forebay.topology import Peer


def main(folder: str, settings_text: str, roles_text: str) -> int:
    logging.basicConfig(level=logging.INFO)
    settings = load(config=None, environ={}, overrides=json.loads(settings_text))
    run_dir = open_run_dir(folder)
    specs = []
    for name, command in json.loads(roles_text).items():
        role, _, number = name.rpartition("-")
        specs.append(RoleSpec(Peer(role, int(number)), tuple(command)))

    def on_ready() -> None:
        print("ready", flush=True)

    try:
        return Supervisor(settings, run_dir, specs, on_ready=on_ready, parent=parent_pid(os.environ)).run()
    except StartError as error:
        print(f"forebay: error: {error}", file=sys.stderr)
        return 1
    finally:
        run_dir.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
