"""Requests made from the OpenAPI description against a running front: no answer may be a 5xx, and it must stay healthy.

`python -m tests.fuzz.over_http [EXAMPLES]` starts a front with the echo engine (needs schemathesis; `make fuzz`).
501 is an answer: it names what the engine does not offer. Pausing is left out: requests would wait for ever.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.helpers.front import Front, running, wait_for
from tests.helpers.models import make_tokenizer

CONFIG = '[checks]\nnot_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501"]\n'
LEFT_OUT = ("/pause_generation",)


def fuzz(front: Front, folder: Path, examples: int) -> int:
    """The exit code of schemathesis: 0 when nothing was found."""
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG)
    command = [str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(config)]
    command += ["run", f"{front.url}/openapi.json", "--checks", "not_a_server_error", "--continue-on-failure"]
    command += ["--max-examples", str(examples), "--generation-deterministic", "--request-timeout", "20", "--no-color"]
    command += ["--phases", "coverage,fuzzing", "--warnings", "off"]
    command += [word for path in LEFT_OUT for word in ("--exclude-path", path)]
    return subprocess.run(command, check=False).returncode


def main(examples: int = 60) -> int:
    """Fuzz one front."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = ("--engine", "echo", "--tokenizer-path", str(make_tokenizer(folder / "model")))
        with running(folder, *flags) as front:
            code = fuzz(front, folder, examples)
            with front.client() as client:
                wait_for(lambda: client.get("/health").status_code == 200, 20, "a healthy front")
            return code


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2])))
