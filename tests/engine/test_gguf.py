"""Reading GGUF files: header, tensors, block formats, and damaged files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forebay_engine.errors import ModelError
from forebay_engine.gguf import GgufFile
from forebay_engine.gguf_blocks import BLOCKS
from forebay_engine.gguf_weights import GgufWeights

ONE, TWO, HALF = b"\x00\x3c", b"\x00\x40", b"\x00\x38"
"""1.0, 2.0 and 0.5 as float16."""
TYPES = {block.name: block for block in BLOCKS.values()}


def decode(name: str, raw: bytes) -> list[float]:
    block = TYPES[name]
    values: list[float] = block.decode(np.frombuffer(raw, np.uint8).reshape(-1, block.bytes)).reshape(-1).tolist()
    assert len(values) == block.values
    return values


def test_metadata_and_tensor_table_are_read(tiny_file: Path) -> None:
    with GgufFile(tiny_file) as file:
        assert file.metadata["general.architecture"] == "llama"
        assert file.metadata["tokenizer.ggml.tokens"][:2] == ["<|endoftext|>", "<|im_start|>"]
        assert file.metadata["llama.rope.freq_base"] == 10000.0
        assert file.tensors["blk.1.ffn_up.weight"].shape == (128, 64)


def test_tensors_are_read_outermost_dimension_first(tiny_file: Path) -> None:
    with GgufFile(tiny_file) as file:
        table = file.read("token_embd.weight")
        assert table.shape == (265, 64)
        assert 0.1 < float(table.std()) < 0.15
        assert file.read("output_norm.weight").tolist() == [1.0] * 64


def test_missing_tensor_is_named(tiny_file: Path) -> None:
    with GgufFile(tiny_file) as file, pytest.raises(ModelError, match=r"no tensor blk\.9\.x"):
        file.read("blk.9.x")


@pytest.mark.parametrize("size", [3, 20, 200, 5000])
def test_file_cut_in_its_header_is_refused(tiny_file: Path, tmp_path: Path, size: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_file.read_bytes()[:size])
    with pytest.raises(ModelError):
        GgufFile(path)


def test_file_cut_in_its_data_is_refused_when_the_tensor_is_read(tiny_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_file.read_bytes()[:-200])
    with GgufFile(path) as file, pytest.raises(ModelError, match="ends before the data of output_norm"):
        file.read("output_norm.weight")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(ModelError, match="not a GGUF file"):
        GgufFile(path)


def test_rotary_rows_of_llama_files_are_brought_to_halves(tiny_file: Path) -> None:
    with GgufFile(tiny_file) as file:
        stored = file.read("blk.0.attn_k.weight")
        given = GgufWeights(file).get("model.layers.0.self_attn.k_proj.weight")
    # 2 heads of 16 rows: the stored pairs (0, 1), (2, 3) ... become rows 0 and 8, 1 and 9 ...
    assert given[1].tolist() == stored[2].tolist()
    assert given[8].tolist() == stored[1].tolist()
    assert given[16].tolist() == stored[16].tolist()


def test_q4_0_is_scale_times_code_minus_8() -> None:
    values = decode("Q4_0", TWO + bytes([0x9F] + [0x88] * 15))
    assert values[0] == 14.0
    assert values[16] == 2.0
    assert values[1:16] == [0.0] * 15


def test_q4_1_is_scale_times_code_plus_minimum() -> None:
    values = decode("Q4_1", HALF + ONE + bytes([0x21] * 16))
    assert values == [1.5] * 16 + [2.0] * 16


def test_q5_0_takes_its_fifth_bit_from_the_mask() -> None:
    values = decode("Q5_0", ONE + (1 << 31 | 1).to_bytes(4, "little") + bytes(16))
    assert values == [0.0] + [-16.0] * 30 + [0.0]


def test_q5_1_takes_its_fifth_bit_from_the_mask() -> None:
    values = decode("Q5_1", ONE + TWO + (1 << 16).to_bytes(4, "little") + bytes(16))
    assert values == [2.0] * 16 + [18.0] + [2.0] * 15


def test_q8_0_codes_are_signed() -> None:
    assert decode("Q8_0", HALF + bytes([0x80] + [2] * 31)) == [-64.0] + [1.0] * 31


def test_q4_k_has_a_scale_and_a_minimum_for_each_32_values() -> None:
    scales = bytes([1, 2, 0, 0, 0, 3, 0, 0, 0x10 | 4, 0, 0, 0])
    values = decode("Q4_K", ONE + TWO + scales + bytes([0x21] * 128))
    assert values[:32] == [1.0] * 32
    assert values[32:64] == [2.0 * 2 - 3 * 2.0] * 32
    assert values[128:160] == [4.0 * 1 - 1 * 2.0] * 32


def test_q5_k_adds_a_fifth_bit_for_each_32_values() -> None:
    values = decode("Q5_K", ONE + ONE + bytes([1] * 4 + [0] * 8) + bytes([0b10] * 32) + bytes(128))
    assert values[:32] == [0.0] * 32
    assert values[32:64] == [16.0] * 32


def test_q6_k_codes_are_centred_on_32() -> None:
    low, high, scales = bytes([0x10] * 128), bytes([0b11] * 64), bytes([2] * 16)
    values = decode("Q6_K", low + high + scales + HALF)
    assert values[:32] == [16.0] * 32
    assert values[32:64] == [-32.0] * 32
    assert values[64:96] == [-31.0] * 32


def test_bf16_is_the_upper_half_of_a_float() -> None:
    assert decode("BF16", b"\x80\x3f") == [1.0]
