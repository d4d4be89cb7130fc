"""`python -m forebay_api --index N`: one api process."""

from __future__ import annotations

import sys

from forebay.role_main import main
from forebay_api.worker import run

if __name__ == "__main__":
    sys.exit(main("api", run))
