"""The rooms of the house: who may import whom, read from the source alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVICES = ("forebay_api", "forebay_tokenizer", "forebay_detokenizer", "forebay_engine")
HEAVY = {"fastapi", "starlette", "uvicorn", "uvloop", "httptools", "tokenizers", "jinja2", "numpy", "openvino", "torch"}
OUTSIDE = {"zmq", "socket", "time", "select", "selectors", "os", "subprocess", "threading", "asyncio", "logging"}
ROLE_NEEDS = {
    "forebay_api": {"tokenizers", "jinja2", "numpy", "openvino"},
    "forebay_tokenizer": {"fastapi", "uvicorn", "starlette", "numpy", "openvino"},
    "forebay_detokenizer": {"fastapi", "uvicorn", "starlette", "jinja2", "numpy", "openvino"},
    "forebay_engine": {"fastapi", "uvicorn", "starlette"},
}
"""Packages that a role does not use: loading them would cost it seconds and memory."""


def imports(path: Path) -> set[str]:
    """The top-level packages that a file imports anywhere, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def offenders(paths: list[Path], forbidden: set[str]) -> list[str]:
    return [f"{path.relative_to(ROOT)}: {name}" for path in paths for name in sorted(imports(path) & forbidden)]


def test_the_sources_are_found() -> None:
    assert len(sources("common/forebay")) > 10


def test_the_shared_room_imports_no_service() -> None:
    assert offenders(sources("common/forebay"), set(SERVICES)) == []


def test_the_shared_room_imports_nothing_heavy() -> None:
    assert offenders(sources("common/forebay"), HEAVY) == []


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_imports_no_other_service(service: str) -> None:
    assert offenders(sources(f"services/{service}"), set(SERVICES) - {service}) == []


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_imports_only_what_its_role_uses(service: str) -> None:
    assert offenders(sources(f"services/{service}"), ROLE_NEEDS[service]) == []


def test_the_wire_opens_no_socket_and_reads_no_clock() -> None:
    assert offenders(sources("common/forebay/wire"), OUTSIDE) == []


@pytest.mark.parametrize("name", ["affinity", "topology", "patience"])
def test_a_planning_module_does_no_input_or_output(name: str) -> None:
    assert offenders([ROOT / f"common/forebay/{name}.py"], {"zmq", "socket", "time", "subprocess", "threading"}) == []


def test_nothing_unpickles() -> None:
    everything = sources("common") + sources("services")
    assert offenders(everything, {"pickle", "cloudpickle", "dill", "shelve", "marshal"}) == []


def test_every_module_says_what_it_is_for() -> None:
    everything = [path for path in sources("common") + sources("services") if path.stat().st_size]
    assert [
        str(path.relative_to(ROOT)) for path in everything if not ast.get_docstring(ast.parse(path.read_text()))
    ] == []
