"""The default engine tells nobody that it runs: what it imports neither sends nor keeps an id for that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULES = ("forebay_engine.backend", "forebay_engine.graph", "forebay_engine.convert", "forebay_engine.process")


@pytest.mark.parametrize("module", MODULES)
def test_import_of_the_engine_leaves_no_trace_in_the_home_folder(tmp_path: Path, module: str) -> None:
    code = f"import {module}, sys; print(*(name for name in sys.modules if name.startswith('openvino_telemetry.')))"
    environ = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    assert list(tmp_path.iterdir()) == []
