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


_BLOCK = """
g (float[batch, sequence, 64] x) => (float[batch, sequence, {width}] y) {{
    {body}
}}
"""


def block(body: str, width: int = 64, opset: int = 22, **constants: np.ndarray) -> Any:
    """A maker of a graph that computes y from x."""
    return lambda: _parsed(_BLOCK.format(body=body, width=width), constants, opset)


_W, _UP = _numbers(64, 96, scale=0.2), _numbers(64, 97, scale=0.2)[:, 1:].copy()
_DOWN = _numbers(96, 64, scale=0.2)
_SCALE, _SHIFT = 1 + _numbers(64, scale=0.1), _numbers(65, scale=0.1)[1:].copy()
_LINEARS = {"w_gate": _W, "w_up": _UP, "w_down": _DOWN}


def feed_forward(activation: str, gated: bool = True, opset: int = 22, **constants: Any) -> Any:
    """A maker of a feed-forward block; `activation` computes a from g."""
    up = "u = MatMul(x, w_up) h = Mul(a, u)" if gated else "h = Identity(a)"
    body = f"g = MatMul(x, w_gate) {activation} {up} y = MatMul(h, w_down)"
    return block(body, opset=opset, **(_LINEARS | constants))


def multi_head(rotary: str, mask: str = "", opset: int = 22, domain: str = "com.microsoft") -> Any:
    """A maker of attention whose keys are appended before the op."""

    def make() -> ir.Model:
        heads = "{0}_split = Reshape({1}, to_heads) {0}_new = Transpose<perm=[0,2,1,3]>({0}_split)"
        joined = "{0}_turned = Transpose<perm=[0,2,1,3]>({1}) {0}_all = Reshape({0}_turned, width)"
        body = f"""{_SEPARATE} {rotary} {heads.format("k", "k_rotated")} {heads.format("v", "v")}
            present__0__key = Concat <axis = 2> (past_key_values__0__key, k_new)
            present__0__value = Concat <axis = 2> (past_key_values__0__value, v_new)
            {joined.format("k", "present__0__key")} {joined.format("v", "present__0__value")}
            {mask}"""
        if domain:
            body += f"""
                y = com.microsoft.MultiHeadAttention <num_heads = {HEADS}>
                    (q_rotated, k_all, v_all, , , bias)"""
        else:
            body += f"""
                y = Attention <q_num_heads = {HEADS}, kv_num_heads = {HEADS}>
                    (q_rotated, k_all, v_all, bias)"""
        more = {
            "to_heads": np.array([0, 0, HEADS, SIZE]),
            "width": np.array([0, 0, _QUERY]),
            "far": np.array(-1e9, np.float32),
            "nothing": np.array(0, np.float32),
            "w_k": _numbers(HIDDEN, _QUERY, scale=0.2)[::-1].copy(),
            "w_v": _numbers(HIDDEN, _QUERY, scale=0.2)[:, ::-1].copy(),
            "second": np.array([1]),
            "third": np.array([1, 2]),
            "front": np.array([0, 1]),
            "zero": np.array(0),
        }
        return decoder(body, more | tables(), opset=opset, positions=True, kv_heads=HEADS)

    return make


#: The causal mask of attention_mask, as a bias on the scores.
_BIAS = """
    mask_shape = Shape(attention_mask) ids_shape = Shape(input_ids)
    key_count = Gather(mask_shape, one) query_count = Gather(ids_shape, one)
    start = Sub(key_count, query_count)
    key_places = Range(zero, key_count, one) query_places = Range(start, key_count, one)
    query_column = Unsqueeze(query_places, second)
    causal = LessOrEqual(key_places, query_column)
    shown = Cast <to = 9> (attention_mask) shown_keys = Unsqueeze(shown, third)
    visible = And(causal, shown_keys)
    bias = Where(visible, nothing, far)
"""
_ROTATED = """
    q_rotated = com.microsoft.RotaryEmbedding (q, position_ids, cos, sin)
    k_rotated = com.microsoft.RotaryEmbedding (k, position_ids, cos, sin)
"""
_ROTATED_23 = f"""
    q_rotated = RotaryEmbedding <num_heads = {HEADS}> (q, cos, sin, position_ids)
    k_rotated = RotaryEmbedding <num_heads = {HEADS}> (k, cos, sin, position_ids)
"""
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
    Form(
        "attention",
        "`MultiHeadAttention` and `RotaryEmbedding` of `com.microsoft`",
        "onnxruntime.transformers, onnxruntime-genai",
        multi_head(_ROTATED, _BIAS),
        {"tamiz.Attention": 1, "com.microsoft.RotaryEmbedding": 0},
        shown="`Attention`",
    ),
    Form(
        "attention",
        "`Attention` and `RotaryEmbedding` of ONNX, opset 23",
        "torch with `dynamo=True`, onnxscript",
        multi_head(_ROTATED_23, _BIAS, opset=23, domain=""),
        {"tamiz.Attention": 1, "RotaryEmbedding": 0},
        shown="`Attention`",
    ),
    Form(
        "norm",
        "`SimplifiedLayerNormalization`",
        "ONNX Runtime, onnxruntime-genai",
        block("y = SimplifiedLayerNormalization <axis = -1> (x, w)", w=_SCALE),
        {"tamiz.RMSNorm": 1},
    ),
    Form(
        "norm",
        "`RMSNormalization`, opset 23",
        "torch with `dynamo=True`",
        block("y = RMSNormalization <axis = -1> (x, w)", opset=23, w=_SCALE),
        {"tamiz.RMSNorm": 1},
    ),
    Form(
        "norm",
        "`SkipSimplifiedLayerNormalization`, with a bias or without",
        "onnxruntime-genai, onnxruntime.transformers",
        block(
            """h = Neg(x)
            n, , , s = com.microsoft.SkipSimplifiedLayerNormalization (x, h, w, b)
            m = com.microsoft.SkipSimplifiedLayerNormalization (n, x, w) y = Add(m, s)""",
            w=_SCALE,
            b=_SHIFT,
        ),
        {"tamiz.RMSNorm": 2, "com.microsoft.SkipSimplifiedLayerNormalization": 0},
        shown="`RMSNorm` with a residual",
    ),
    Form(
        "norm",
        "`SkipLayerNormalization`",
        "ONNX Runtime, onnxruntime.transformers",
        block(
            """h = Neg(x) n, , , s = com.microsoft.SkipLayerNormalization (x, h, w, b, b)
            y = Add(n, s)""",
            w=_SCALE,
            b=_SHIFT,
        ),
        {"LayerNormalization": 1, "com.microsoft.SkipLayerNormalization": 0},
        shown="`Add`, `LayerNormalization`",
    ),
    *(
        Form(
            "feed forward", title, tools, feed_forward(text), {"tamiz.SwiGLU": 1}, shown="`SwiGLU`"
        )
        for title, tools, text in (
            ("`Sigmoid`, `Mul`", "all", "s = Sigmoid(g) a = Mul(g, s)"),
            (
                "`QuickGelu` with α = 1",
                "ONNX Runtime",
                "a = com.microsoft.QuickGelu <alpha = 1.0> (g)",
            ),
            (
                "`FastGelu` in a gate",
                "onnxruntime-genai, ONNX Runtime",
                "a = com.microsoft.FastGelu (g)",
            ),
            ("`Gelu` with `approximate=tanh`", "torch", 'a = Gelu <approximate = "tanh"> (g)'),
        )
    ),
    *(
        Form(
            "feed forward",
            title,
            "ONNX Runtime, onnxruntime.transformers",
            feed_forward(text, gated=False, b=_numbers(96)),
            {op: 0, "MatMul": 2},
            shown="standard ops",
        )
        for title, op, text in (
            ("`BiasGelu`", "com.microsoft.BiasGelu", "a = com.microsoft.BiasGelu (g, b)"),
            (
                "`FastGelu` with a bias",
                "com.microsoft.FastGelu",
                "a = com.microsoft.FastGelu (g, b)",
            ),
            ("`Gelu` of `com.microsoft`", "com.microsoft.Gelu", "a = com.microsoft.Gelu (g)"),
            ("`QuickGelu`", "com.microsoft.QuickGelu", "a = com.microsoft.QuickGelu (g)"),
        )
    ),
    Form(
        "linear",
        "one `MatMul` whose output is split: `Split`, with a bias",
        "onnxruntime-genai, optimum (Phi 3)",
        block(
            """p = MatMul(x, w) q = Add(p, b) g, u = Split <axis = -1, num_outputs = 2> (q)
            y = Sub(g, u)""",
            w=_numbers(64, 128, scale=0.2),
            b=_numbers(128),
        ),
        {"MatMul": 2, "Split": 0},
        shown="a linear each",
    ),
    Form(
        "linear",
        "… `Slice` with bounds from shapes",
        "optimum (Phi 3)",
        block(
            """p = MatMul(x, w) s = Shape(p) n = Gather(s, last) m = Div(n, two)
            g = Slice(p, zero, m, last) u = Slice(p, m, n, last) y = Sub(g, u)""",
            w=_numbers(64, 128, scale=0.2),
            last=np.array([-1]),
            two=np.array([2]),
            zero=np.array([0]),
        ),
        {"MatMul": 2, "Slice": 0},
        shown="a linear each",
    ),
    Form(
        "linear",
        "`Gemm` between two `Reshape`s",
        "optimum (GPT-2)",
        block(
            """s = Shape(x) b = Gather(s, zero) t = Gather(s, one) f = Reshape(x, rows)
            p = Gemm(f, w, c) o = Concat <axis = 0> (b, t, n) y = Reshape(p, o)""",
            width=96,
            w=_W,
            c=_numbers(96),
            rows=np.array([-1, 64]),
            zero=np.array([0]),
            one=np.array([1]),
            n=np.array([96]),
        ),
        {"MatMul": 1, "Add": 1, "Gemm": 0},
        shown="`MatMul`, `Add`",
    ),
    Form(
        "linear",
        "`FusedMatMul`",
        "ONNX Runtime",
        block(
            "y = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (x, w)",
            width=96,
            w=_numbers(96, 64, scale=0.2),
        ),
        {"MatMul": 1, "com.microsoft.FusedMatMul": 0},
        shown="`MatMul`, `Mul`",
    ),
)
