"""The forms of graphs that are recognised, and some that are not, each with a small graph.

One declaration for the tests, which run every graph beside plain ONNX Runtime, and for the page
docs/reference/graphs.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

HEADS, KV_HEADS, SIZE, HIDDEN, VOCABULARY = 4, 2, 16, 64, 50
_QUERY, _KEY = HEADS * SIZE, KV_HEADS * SIZE
Constants = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Form:
    """A form of a part of a graph.

    Attributes:
        part: What it is a form of.
        title: The form, in Markdown.
        tools: Who writes it.
        graph: Makes a graph with it.
        becomes: How often ops stand in the recognised graph, ``domain.op`` of other domains.
        refused: The reason why it stays; None where it is recognised.
        padded: Whether it is defined for prompts with padding at their beginning.
        shown: What it becomes, in Markdown.
    """

    part: str
    title: str
    tools: str
    graph: Callable[[], ir.Model]
    becomes: Mapping[str, int] = field(default_factory=dict)
    refused: str | None = None
    padded: bool = True
    shown: str = ""


def _numbers(*shape: int, scale: float = 1.0) -> np.ndarray:
    random = np.random.default_rng(sum(shape))
    return (scale * random.standard_normal(shape)).astype(np.float32)


def _parsed(text: str, constants: Constants, opset: int = 22) -> ir.Model:
    """A model of ONNX's text form; ``__`` in a name is a dot."""
    header = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>\n'
    proto = onnx.parser.parse_model(header + text)
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = ir.from_proto(proto)
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.name = (value.name or "").replace("__", ".")
    return model


_DECODER = """
g (int64[batch, sequence] input_ids, int64[batch, total] attention_mask{positions},
   float[batch, {kv}, past, {size}] past_key_values__0__key,
   float[batch, {kv}, past, {size}] past_key_values__0__value)
=> (float[batch, sequence, 50] logits, float[batch, {kv}, total, {size}] present__0__key,
    float[batch, {kv}, total, {size}] present__0__value) {{
    x = Gather(embedding, input_ids)
    {body}
    o = MatMul(y, w_o)
    logits = MatMul(o, w_head)
}}
"""
_SEPARATE = "q = MatMul(x, w_q) k = MatMul(x, w_k) v = MatMul(x, w_v)"
#: Lengths as onnxruntime-genai's builder computes them.
_LENGTHS = """
    sum = ReduceSum <keepdims = 0> (attention_mask, one_axis) less = Sub(sum, one)
    seqlens = Cast <to = 6> (less)
    shape = Shape(attention_mask) keys = Gather(shape, one) total_length = Cast <to = 6> (keys)
"""
_PASTS = "past_key_values__0__key, past_key_values__0__value"
_RESULTS = "y, present__0__key, present__0__value"
_COMMON: dict[str, np.ndarray] = {
    "embedding": _numbers(VOCABULARY, HIDDEN),
    "w_head": _numbers(HIDDEN, VOCABULARY, scale=0.2),
    "one": np.array(1),
    "one_axis": np.array([1]),
}


def tables(positions: int = 64, base: float = 1e4, rotated: int = SIZE) -> dict[str, np.ndarray]:
    """Cosines and sines as builders compute them, in float32."""
    frequency = (1 / base ** (np.arange(0, rotated, 2) / rotated)).astype(np.float32)
    angle = np.arange(positions, dtype=np.float32)[:, None] * frequency
    return {"cos": np.cos(angle), "sin": np.sin(angle)}


def decoder(
    body: str,
    more: Constants | None = None,
    *,
    opset: int = 22,
    positions: bool = False,
    kv_heads: int = KV_HEADS,
    size: int = SIZE,
) -> ir.Model:
    """A decoder of one attention, of which `body` computes y and the presents from x."""
    given = ", int64[batch, sequence] position_ids" if positions else ""
    text = _DECODER.format(body=body, positions=given, kv=kv_heads, size=size)
    return _parsed(text, _COMMON | _weights(kv_heads, size) | (more or {}), opset)


def _weights(kv_heads: int, size: int) -> dict[str, np.ndarray]:
    """Of the four linears around an attention."""
    query, key = HEADS * size, kv_heads * size
    widths = {"w_q": query, "w_k": key, "w_v": key}
    found = {name: _numbers(HIDDEN, n, scale=0.2) for name, n in widths.items()}
    found["w_v"] = found["w_v"][::-1].copy()  # not the numbers of w_k
    return found | {"w_o": _numbers(query, HIDDEN, scale=0.2)[::-1].copy()}


def grouped(
    attributes: str = "", more: str = "", packed: bool = False, size: int = SIZE, **constants: Any
) -> Any:
    """A maker of GroupQueryAttention."""

    def make() -> ir.Model:
        weights = _weights(KV_HEADS, size)
        given = {"w_qkv": np.concatenate([weights[w] for w in ("w_q", "w_k", "w_v")], axis=1)}
        before = "qkv = MatMul(x, w_qkv)" if packed else _SEPARATE
        values = "qkv, , " if packed else "q, k, v"
        called = f"num_heads = {HEADS}, kv_num_heads = {KV_HEADS}{attributes}"
        body = f"""{before} {_LENGTHS}
            {_RESULTS} = com.microsoft.GroupQueryAttention <{called}>
                ({values}, {_PASTS}, seqlens, total_length{more})"""
        return decoder(body, given | tables() | constants, size=size)

    return make


def head_norms() -> ir.Model:
    """Norms of heads in front of GroupQueryAttention, as the builder writes Qwen 3."""
    norm = """
        {0}_heads = Reshape({0}, to_heads) {0}_normed = SimplifiedLayerNormalization <axis = -1,
            epsilon = 1e-6, stash_type = 1> ({0}_heads, head_scale)
        {0}_joined = Reshape({0}_normed, {0}_width)
    """
    called = f"num_heads = {HEADS}, kv_num_heads = {KV_HEADS}, do_rotary = 1"
    body = f"""{_SEPARATE} {_LENGTHS} {norm.format("q")} {norm.format("k")}
        {_RESULTS} = com.microsoft.GroupQueryAttention <{called}>
            (q_joined, k_joined, v, {_PASTS}, seqlens, total_length, cos, sin)"""
    more = {
        "to_heads": np.array([0, -1, SIZE]),
        "q_width": np.array([0, -1, _QUERY]),
        "k_width": np.array([0, -1, _KEY]),
        "head_scale": 1 + _numbers(SIZE, scale=0.1),
    }
    return decoder(body, more | tables())


_ROTARY = ", , cos, sin"
_ATTENTION = {"tamiz.Attention": 1, "com.microsoft.GroupQueryAttention": 0, "MatMul": 5}

FORMS: tuple[Form, ...] = (
    Form(
        "attention",
        "`GroupQueryAttention` with `do_rotary`",
        "onnxruntime-genai, onnx-community",
        grouped(", do_rotary = 1", ", cos, sin"),
        _ATTENTION,
        padded=False,
    ),
    Form(
        "attention",
        "… query, key and value packed",
        "onnxruntime-genai",
        grouped(", do_rotary = 1", ", cos, sin", packed=True),
        _ATTENTION | {"Split": 0},
        padded=False,
        shown="`Attention`, and a linear each",
    ),
    Form(
        "attention",
        "… without rotary embedding",
        "onnxruntime-genai",
        grouped(),
        _ATTENTION,
        padded=False,
    ),
    Form(
        "attention",
        "… with `scale` and `softcap`",
        "onnxruntime-genai",
        grouped(", do_rotary = 1, scale = 0.3, softcap = 2.0", ", cos, sin"),
        _ATTENTION,
        padded=False,
    ),
    Form(
        "attention",
        "… with `local_window_size`",
        "onnxruntime-genai",
        grouped(", do_rotary = 1, local_window_size = 6", ", cos, sin"),
        _ATTENTION,
        padded=False,
    ),
    Form(
        "attention",
        "… where a part of each head rotates",
        "onnxruntime-genai",
        grouped(", do_rotary = 1", ", cos, sin", size=32, **tables(rotated=16)),
        _ATTENTION,
        padded=False,
    ),
    Form(
        "attention",
        "… with norms of heads before it",
        "onnxruntime-genai",
        head_norms,
        _ATTENTION | {"tamiz.RMSNorm": 2, "Reshape": 0},
        padded=False,
    ),
    Form(
        "attention",
        "… with `rotary_interleaved`",
        "onnxruntime-genai",
        grouped(", do_rotary = 1, rotary_interleaved = 1", ", cos, sin"),
        refused="It rotates interleaved pairs, expected halves (rotary_interleaved = 1).",
        padded=False,
    ),
    Form(
        "attention",
        "… with `smooth_softmax`",
        "onnxruntime-genai",
        grouped(", do_rotary = 1, smooth_softmax = 1", ", cos, sin"),
        refused="It adds 1 to the sum of its softmax (smooth_softmax = 1).",
        padded=False,
    ),
    Form(
        "attention",
        "… with a `head_sink`",
        "onnxruntime-genai (gpt-oss)",
        grouped(", do_rotary = 1", ", cos, sin, , , sinks", sinks=_numbers(HEADS)),
        refused="It has sinks in its softmax.",
        padded=False,
    ),
    Form(
        "attention",
        "… with tables of other rotations",
        "–",
        grouped(", do_rotary = 1", ", cos, sin", cos=tables()["cos"] ** 3),
        refused="The rotary tables are not cos and sin of positions × constant frequencies.",
        padded=False,
    ),
)
