"""Presents the tensors of a GGUF file under the usual (Hugging Face) names and in the usual row order."""

from __future__ import annotations

from forebay_engine.arrays import Floats
from forebay_engine.gguf import GgufFile

TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


class GgufWeights:
    """The `Weights` of an open GGUF file."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        arch = file.metadata["general.architecture"]
        heads = file.metadata[f"{arch}.attention.head_count"]
        pairs = {"q_proj": heads, "k_proj": file.metadata.get(f"{arch}.attention.head_count_kv", heads)}
        # Only files of the architecture `llama` store rotary pairs side by side; the others keep halves apart.
        self.interleaved = pairs if arch == "llama" else {}

    def has(self, name: str) -> bool:
        """Whether the file holds this tensor."""
        return _stored_name(name) in self.file.tensors

    def get(self, name: str) -> Floats:
        """One tensor as float32, matrices as (out, in)."""
        values = self.file.read(_stored_name(name))
        heads = self.interleaved.get(name.split(".")[-2])
        return values if heads is None else _pairs_to_halves(values, heads)


def _stored_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`."""
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{LAYER_NAMES.get(part, part)}.{kind}"


def _pairs_to_halves(values: Floats, heads: int) -> Floats:
    """Rows of each head from (x0, y0, x1, y1 ...) to (x0, x1 ... y0, y1 ...)."""
    split = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return split.swapaxes(1, 2).reshape(values.shape)
