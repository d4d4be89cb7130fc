"""`python -m forebay_tokenizer --index N`: one tokenizer process."""

from __future__ import annotations

import sys

from forebay.role_main import main
from forebay_tokenizer.service import run

if __name__ == "__main__":
    sys.exit(main("tokenizer", run))
