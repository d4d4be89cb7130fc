"""Builds the OpenVINO graph of a decoder model (the Llama family) from its shape and its weights.

The graph has the form that OpenVINO's paged-attention pass expects: key and value as model state, appended
to by `Concat`, read by `ScaledDotProductAttention`. `backend` applies that pass; the graph itself runs too.
Covered: Llama, Mistral without a window, Qwen2 (biases) and Qwen3 (norms on query and key).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
import openvino as ov
from openvino import opset13 as op
from openvino.op.util import Variable, VariableInfo

from forebay_engine.arrays import AnyArray, Floats

Node: TypeAlias = Any
"""A node of the graph under construction; OpenVINO's Python classes carry no types."""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that define a decoder of the Llama family."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int
    norm_eps: float
    rope_theta: float
    tied: bool
    """The output projection is the table of the input embeddings."""


class Weights(Protocol):
    """Access to the weights of a model under their usual (Hugging Face) names."""

    def has(self, name: str) -> bool:
        """Whether the model has this tensor."""

    def get(self, name: str) -> Floats:
        """The values of one tensor, float32, matrices as (out, in). Raises `ModelError`."""


Packer: TypeAlias = Callable[[Floats], Node]
"""Turns a weight matrix (out, in) into a graph node giving its values as float32."""


def pack_f16(values: Floats) -> Node:
    """A matrix kept as float16; as float32 where a value would overflow."""
    if float(np.abs(values).max(initial=0.0)) >= 65504.0:
        return op.constant(values)
    return op.convert(op.constant(values.astype(np.float16)), "f32")


def pack_q8(values: Floats, group: int = 32) -> Node:
    """A matrix as signed bytes with one float16 scale for every `group` values of a row."""
    rows, columns = values.shape
    if columns % group:
        return pack_f16(values)
    blocks = values.reshape(rows, columns // group, group)
    scale = (np.abs(blocks).max(axis=2, keepdims=True) / 127.0).astype(np.float16)
    divisor = np.where(scale == 0, np.float16(1), scale).astype(np.float32)
    codes = np.clip(np.rint(blocks / divisor), -127, 127).astype(np.int8)
    wide = op.multiply(op.convert(op.constant(codes), "f16"), op.constant(scale))
    return op.convert(op.reshape(wide, _ints([rows, columns]), False), "f32")


PACKERS: dict[str, Packer] = {"f16": pack_f16, "q8_0": pack_q8}
"""The values of the setting `engine_weights`."""


def build(shape: ModelShape, weights: Weights, packer: Packer) -> ov.Model:
    """The graph: inputs `input_ids`, `attention_mask`, `position_ids` (batch, tokens) and `beam_idx` (batch)."""
    return _Builder(shape, weights, packer).model()


def _ints(values: list[int]) -> Node:
    return op.constant(np.array(values, np.int64))


def _floats(values: AnyArray | float) -> Node:
    return op.constant(np.array(values, np.float32))


class _Builder:
    """Holds what every layer needs while the graph grows."""

    def __init__(self, shape: ModelShape, weights: Weights, packer: Packer) -> None:
        self.shape = shape
        self.weights = weights
        self.packer = packer
        self.ids = self._input("input_ids", [-1, -1], np.int64)
        self.mask = self._input("attention_mask", [-1, -1], np.int64)
        self.positions = self._input("position_ids", [-1, -1], np.int64)
        self.beams = self._input("beam_idx", [-1], np.int32)
        self.assigns: list[Node] = []

    def model(self) -> ov.Model:
        table = self.packer(self.weights.get("model.embed_tokens.weight"))
        x = op.gather(table, op.convert(self.ids, "i32"), _ints([0]).output(0))
        cos, sin = self._rotation()
        for index in range(self.shape.layers):
            x = self._layer(x, f"model.layers.{index}.", index, cos, sin)
        x = self._norm(x, "model.norm.weight")
        head = table if self.shape.tied else self.packer(self.weights.get("lm_head.weight"))
        logits = op.result(op.matmul(x, head, False, True))
        logits.output(0).get_tensor().set_names({"logits"})
        inputs = [self.ids, self.mask, self.positions, self.beams]
        return ov.Model([logits], self.assigns, inputs, "forebay")

    def _input(self, name: str, shape: list[int], kind: type) -> Node:
        node = op.parameter(shape, kind, name=name)
        node.output(0).get_tensor().set_names({name})
        return node

    def _rotation(self) -> tuple[Node, Node]:
        """Cosine and sine of the rotary embedding: (batch, 1, tokens, head_size)."""
        half = np.arange(0, self.shape.head_size, 2, dtype=np.float32) / self.shape.head_size
        frequencies = _floats((1.0 / self.shape.rope_theta**half)[None, :, None])
        positions = op.convert(op.unsqueeze(self.positions, _ints([1])), "f32")
        angles = op.transpose(op.matmul(frequencies, positions, False, False), _ints([0, 2, 1]))
        both = op.unsqueeze(op.concat([angles, angles], -1), _ints([1]))
        return op.cos(both), op.sin(both)

    def _layer(self, x: Node, prefix: str, index: int, cos: Node, sin: Node) -> Node:
        attended = self._attention(
            self._norm(x, prefix + "input_layernorm.weight"), prefix + "self_attn.", index, cos, sin
        )
        x = op.add(x, attended)
        y = self._norm(x, prefix + "post_attention_layernorm.weight")
        gate = op.swish(self._linear(y, prefix + "mlp.gate_proj"))
        up = self._linear(y, prefix + "mlp.up_proj")
        return op.add(x, self._linear(op.multiply(gate, up), prefix + "mlp.down_proj"))

    def _attention(self, x: Node, prefix: str, index: int, cos: Node, sin: Node) -> Node:
        shape = self.shape
        query = self._rotate(self._heads(x, prefix, "q", shape.heads), cos, sin)
        key = self._rotate(self._heads(x, prefix, "k", shape.kv_heads), cos, sin)
        value = self._heads(x, prefix, "v", shape.kv_heads)
        key = self._repeat(self._append(key, f"past_key_values.{index}.key"))
        value = self._repeat(self._append(value, f"past_key_values.{index}.value"))
        out = op.scaled_dot_product_attention(query, key, value, self._attention_mask(), causal=False)
        merged = op.reshape(op.transpose(out, _ints([0, 2, 1, 3])), _ints([0, 0, shape.heads * shape.head_size]), True)
        return self._linear(merged, prefix + "o_proj")

    def _heads(self, x: Node, prefix: str, name: str, heads: int) -> Node:
        """Projection, cut into heads: (batch, heads, tokens, head_size)."""
        y = op.reshape(self._linear(x, f"{prefix}{name}_proj"), _ints([0, 0, heads, self.shape.head_size]), True)
        if self.weights.has(f"{prefix}{name}_norm.weight"):
            y = self._norm(y, f"{prefix}{name}_norm.weight")
        return op.transpose(y, _ints([0, 2, 1, 3]))

    def _rotate(self, x: Node, cos: Node, sin: Node) -> Node:
        half = self.shape.head_size // 2
        first, second = op.variadic_split(x, _ints([3]).output(0), _ints([half, half])).outputs()
        turned = op.concat([op.multiply(second, _floats(-1.0)), first], -1)
        return op.add(op.multiply(x, cos), op.multiply(turned, sin))

    def _append(self, x: Node, name: str) -> Node:
        """The state `name` with `x` behind it; (batch, kv_heads, all tokens, head_size)."""
        info = VariableInfo()
        info.data_shape = ov.PartialShape([-1, self.shape.kv_heads, -1, self.shape.head_size])
        info.data_type = ov.Type.f32
        info.variable_id = name
        variable = Variable(info)
        batch = op.gather(op.shape_of(self.ids), _ints([0]), _ints([0]).output(0))
        empty = op.broadcast(_floats(0.0), op.concat([batch, _ints([self.shape.kv_heads, 0, self.shape.head_size])], 0))
        past = op.gather(op.read_value(empty, variable), self.beams, _ints([0]).output(0))
        full = op.concat([past, x], 2)
        self.assigns.append(op.assign(full, variable))
        return full

    def _repeat(self, x: Node) -> Node:
        """Each key/value head once for every query head that shares it."""
        times = self.shape.heads // self.shape.kv_heads
        if times == 1:
            return x
        size, heads = self.shape.head_size, self.shape.kv_heads
        spread = op.broadcast(op.unsqueeze(x, _ints([2])), _ints([1, 1, times, 1, 1]), broadcast_spec="BIDIRECTIONAL")
        return op.reshape(spread, _ints([0, heads * times, -1, size]), True)

    def _attention_mask(self) -> Node:
        """0 where a token may look, minus infinity elsewhere. The paged-attention pass drops this part."""
        return op.unsqueeze(op.convert(self.mask, "f32"), _ints([1, 2]))

    def _linear(self, x: Node, name: str) -> Node:
        y = op.matmul(x, self.packer(self.weights.get(name + ".weight")), False, True)
        if self.weights.has(name + ".bias"):
            y = op.add(y, _floats(self.weights.get(name + ".bias")))
        return y

    def _norm(self, x: Node, name: str) -> Node:
        """Root-mean-square norm over the last axis."""
        square = op.power(x, _floats(2.0))
        mean = op.add(op.reduce_mean(square, _ints([-1]), True), _floats(self.shape.norm_eps))
        scaled = op.multiply(x, op.divide(_floats(1.0), op.sqrt(mean)))
        return op.multiply(scaled, _floats(self.weights.get(name)))
