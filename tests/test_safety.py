"""What stands nowhere in the product's code: anything that turns bytes from outside into code or any object."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*(ROOT / "common").rglob("*.py"), *(ROOT / "services").rglob("*.py")])
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "yaml"}
FORBIDDEN_NAMES = {"eval", "exec", "compile", "recv_pyobj", "send_pyobj", "allow_pickle", "recv_json", "os.system"}


@functools.cache
def names_in(path: Path) -> set[str]:
    """The modules that a file imports, the bare names that it calls, and the attributes and keywords that it uses."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            found.add(f"os.{node.attr}")
        elif isinstance(node, ast.Attribute) and node.attr not in ("compile",):
            found.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
    return found


@pytest.mark.parametrize("word", sorted(FORBIDDEN_MODULES | FORBIDDEN_NAMES))
def test_the_code_never_uses(word: str) -> None:
    assert [str(path.relative_to(ROOT)) for path in SOURCES if word in names_in(path)] == []


def test_a_use_would_be_found(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "import pickle\nimport os\nnp.load(f, allow_pickle=True)\neval('1')\ns.recv_pyobj()\nos.system('x')\n"
    )
    assert {"pickle", "allow_pickle", "eval", "recv_pyobj", "os.system"} <= names_in(path)
    other = tmp_path / "good.py"
    other.write_text("import re\nre.compile('a')\n")
    assert names_in(other) == {"re"}
