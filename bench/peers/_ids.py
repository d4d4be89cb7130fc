"""The token ids of the text that a mock engine answers."""

from __future__ import annotations

import os
import subprocess
import sys


def encode(model: str, text: str) -> list[int]:
    """The ids of a text; in a child, so that this process's memory is the server's and not the library's."""
    program = (
        "import sys, tokenizers; t = tokenizers.Tokenizer.from_file(sys.argv[1]); "
        "print(*t.encode(open(sys.argv[2], encoding='utf-8').read(), add_special_tokens=False).ids)"
    )
    command = [sys.executable, "-c", program, os.path.join(model, "tokenizer.json"), text]
    done = subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return [int(word) for word in done.stdout.split()]
