"""`python -m forebay_detokenizer --index N`: one detokenizer process."""

from __future__ import annotations

import sys

from forebay.role_main import main
from forebay_detokenizer.service import run

if __name__ == "__main__":
    sys.exit(main("detokenizer", run))
