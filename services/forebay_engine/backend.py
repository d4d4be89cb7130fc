"""One step of the model on OpenVINO: token rows in, logits and hidden rows out. Knows blocks, not requests.

The attention state of all sequences lies in pools of fixed blocks, one pair of pools a layer; a sequence owns
a table of block numbers (`kv_pool`). One inference serves every sequence of a step, prompt pieces and single
tokens mixed. `paged_attention_transformation` is not part of OpenVINO's public interface, so its version is
pinned; it is used here and nowhere else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13 as op
from openvino._offline_transformations import paged_attention_transformation

from forebay_engine.arrays import Floats, Indexes, Ints
from forebay_engine.errors import ModelError

GRAPH_FILE = "openvino_model.xml"
PRECISIONS = ("f32", "bf16")
BLOCK_TOKENS = 32
"""Tokens a block: the block size of the CPU kernels."""


class StepInput(NamedTuple):
    """The token rows of one step; rows of one sequence lie together, sequences in the order of `past`.

    For S sequences and N rows: `tokens`, `positions` (N); `past` (S) tokens already in the cache; `begins` (S+1)
    first row of each sequence; `blocks` and `block_begins` (S+1) the tables one after the other; `longest`
    tokens of the longest sequence after this step; `logit_rows`, `hidden_rows` the rows whose results are wanted.
    """

    tokens: Ints
    positions: Ints
    past: Indexes
    begins: Indexes
    blocks: Indexes
    block_begins: Indexes
    longest: int
    logit_rows: Indexes
    hidden_rows: Indexes


class StepOutput(NamedTuple):
    """`logits` (len(logit_rows), vocab) and `hidden` (len(hidden_rows), hidden size), in the order asked for.

    Both are views of the engine's buffers: they hold until the next step.
    """

    logits: Floats
    hidden: Floats


class Backend:
    """A compiled model with its cache pools."""

    def __init__(self, folder: Path, *, threads: int, precision: str, cache_tokens: int) -> None:
        """Load and compile (1 to 2 s for 135 M parameters). Raises `ModelError`."""
        core = ov.Core()
        model = _with_row_selection(_paged(core, folder / GRAPH_FILE))
        self.vocab_size = int(model.output("logits").partial_shape[-1].get_length())
        self.hidden_size = int(model.output("hidden").partial_shape[-1].get_length())
        compiled = core.compile_model(model, "CPU", _properties(threads, precision))
        self._request = compiled.create_infer_request()
        self.blocks = -(-cache_tokens // BLOCK_TOKENS)
        self.cache_bytes = sum(self._add_pool(port) for port in compiled.inputs if "_cache." in port.any_name)

    def warm_up(self) -> None:
        """Compute a prompt and a single token, so that the first request does not wait 0.9 s for its kernels."""
        for start, end in ((0, 40), (40, 41)):
            rows = np.array([end - start - 1], np.int32)
            self.run(
                StepInput(
                    tokens=np.zeros(end - start, np.int64),
                    positions=np.arange(start, end, dtype=np.int64),
                    past=np.array([start], np.int32),
                    begins=np.array([0, end - start], np.int32),
                    blocks=np.array([0, 1], np.int32),
                    block_begins=np.array([0, 2], np.int32),
                    longest=end,
                    logit_rows=rows,
                    hidden_rows=rows,
                )
            )

    def run(self, step: StepInput) -> StepOutput:
        """One inference. The interpreter lock is free while it runs."""
        request = self._request
        for name in ("tokens", "positions", "past", "begins", "blocks", "block_begins"):
            request.set_tensor(_PORTS[name], ov.Tensor(getattr(step, name)))
        request.set_tensor("max_context_len", ov.Tensor(np.array(step.longest, np.int32)))
        request.set_tensor("logit_rows", ov.Tensor(_never_empty(step.logit_rows)))
        request.set_tensor("hidden_rows", ov.Tensor(_never_empty(step.hidden_rows)))
        request.start_async()
        request.wait()
        logits = request.get_tensor("logits").data.reshape(-1, self.vocab_size)
        hidden = request.get_tensor("hidden").data.reshape(-1, self.hidden_size)
        return StepOutput(logits[: len(step.logit_rows)], hidden[: len(step.hidden_rows)])

    def _add_pool(self, port: Any) -> int:
        """Allocate one pool; pages that no sequence has used yet take no memory. Returns its size in bytes."""
        shape = [self.blocks, *(int(size.get_length()) for size in list(port.partial_shape)[1:])]
        pool = ov.Tensor(port.element_type, ov.Shape(shape))
        self._request.set_tensor(port.any_name, pool)
        return int(pool.byte_size)


_PORTS = {
    "tokens": "input_ids",
    "positions": "position_ids",
    "past": "past_lens",
    "begins": "subsequence_begins",
    "blocks": "block_indices",
    "block_begins": "block_indices_begins",
}


def best_precision() -> str:
    """bf16 where the processor computes in it, else f32."""
    return "bf16" if "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "f32"


def _properties(threads: int, precision: str) -> dict[str, Any]:
    return {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        # Pinning is forebay's business: the engine's process has its cores already.
        "ENABLE_CPU_PINNING": False,
        "INFERENCE_PRECISION_HINT": precision,
        # The default, u8, makes logits depend on how a prompt was cut into pieces.
        "KV_CACHE_PRECISION": precision,
        # 0: activations are not rounded to 8 bits for quantised weights.
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }


def _paged(core: ov.Core, path: Path) -> ov.Model:
    """The model read from `path`, its attention replaced by paged attention."""
    try:
        model = core.read_model(path)
        paged_attention_transformation(model)
        model.input("block_indices")
    except RuntimeError as error:
        raise ModelError(f"{path} cannot be used for paged attention: {str(error).splitlines()[0]}") from error
    return model


def _with_row_selection(model: ov.Model) -> ov.Model:
    """Compute logits for the rows in `logit_rows` only, and add the output `hidden` for `hidden_rows`.

    The output projection is the widest matrix of the model; most rows of a prompt do not need it.
    """
    projection = model.output("logits").get_node().input_value(0).get_node()
    states = projection.input_value(0)
    picked = {}
    for name in ("logit_rows", "hidden_rows"):
        rows = op.parameter([-1], np.int32, name=name)
        rows.output(0).get_tensor().set_names({name})
        picked[name] = op.gather(states, rows, op.constant(0, np.int32))
        model.add_parameters([rows])
    projection.input(0).replace_source_output(picked["logit_rows"].output(0))
    result = op.result(picked["hidden_rows"], name="hidden")
    result.output(0).get_tensor().set_names({"hidden"})
    model.add_results([result])
    model.validate_nodes_and_infer_types()
    return model


def _never_empty(rows: Indexes) -> Indexes:
    """Row 0 where no row is wanted: a gather of nothing is slower than a gather of one row."""
    return rows if len(rows) else np.zeros(1, np.int32)
