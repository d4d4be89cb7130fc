"""Reading safetensors: types, several files, and damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forebay_engine.errors import ModelError
from forebay_engine.safetensors import SafetensorsWeights


def write(path: Path, data: bytes, **tensors: Any) -> None:
    head = json.dumps({"__metadata__": {}, **tensors}).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)


def entry(kind: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("F32", b"\x00\x00\x80\x3f\x00\x00\x00\xc0"),
        ("F16", b"\x00\x3c\x00\xc0"),
        ("BF16", b"\x80\x3f\x00\xc0"),
    ],
)
def test_each_type_becomes_float32(tmp_path: Path, kind: str, data: bytes) -> None:
    write(tmp_path / "m.safetensors", data, w=entry(kind, [2, 1], 0, len(data)))
    assert SafetensorsWeights(tmp_path).get("w").tolist() == [[1.0], [-2.0]]


def test_tensors_of_all_files_are_found(tmp_path: Path) -> None:
    write(tmp_path / "m-1.safetensors", b"\x00\x3c", a=entry("F16", [1], 0, 2))
    write(tmp_path / "m-2.safetensors", b"\x00\x00\x00\x40", b=entry("F16", [1], 2, 4))
    weights = SafetensorsWeights(tmp_path)
    assert (weights.get("a").tolist(), weights.get("b").tolist()) == ([1.0], [2.0])
    assert not weights.has("c")


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (entry("I64", [1], 0, 8), "stored as I64"),
        (entry("F16", [9], 0, 2), "not the size of its shape"),
        (entry("F16", [9], 0, 18), "ends before the data"),
    ],
)
def test_tensor_that_cannot_be_read_is_named(tmp_path: Path, tensor: dict[str, Any], reason: str) -> None:
    write(tmp_path / "m.safetensors", bytes(8), w=tensor)
    with pytest.raises(ModelError, match=reason):
        SafetensorsWeights(tmp_path).get("w")


@pytest.mark.parametrize("data", [b"", b"\xff" * 20, (200).to_bytes(8, "little") + b"{"])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.safetensors").write_bytes(data)
    with pytest.raises(ModelError):
        SafetensorsWeights(tmp_path)
