"""The forms of graphs that are recognised, and some that are not, each with a small graph.

One declaration for the tests, which run every graph beside plain ONNX Runtime, and for the page
docs/reference/graphs.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from kit.graph_parts import (
    BIAS,
    FLAT_KEYS,
    HEADS,
    PROMPT_OR_STEP,
    ROTATED,
    ROTATED_23,
    ROTATED_COMPUTED,
    SCALE,
    SHIFT,
    TURNED_IN_PART,
    WEIGHT,
    block,
    feed_forward,
    grouped,
    head_norms,
    multi_head,
    numbers,
    primitive,
    tables,
)


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
        continued: Whether it is defined for several tokens after a past.
        shown: What it becomes, in Markdown.
    """

    part: str
    title: str
    tools: str
    graph: Callable[[], ir.Model]
    becomes: Mapping[str, int] = field(default_factory=dict)
    refused: str | None = None
    padded: bool = True
    continued: bool = True
    shown: str = ""


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
        grouped(", do_rotary = 1", ", cos, sin", False, 32, **tables(rotated=16)),
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
        _ATTENTION,
        padded=False,
    ),
    Form(
        "attention",
        "… with a `head_sink`",
        "onnxruntime-genai (gpt-oss)",
        grouped(", do_rotary = 1", ", cos, sin, , , sinks", sinks=numbers(HEADS)),
        _ATTENTION,
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
        multi_head(ROTATED, BIAS),
        {"tamiz.Attention": 1, "com.microsoft.RotaryEmbedding": 0},
        shown="`Attention`",
    ),
    Form(
        "attention",
        "… with a mask for prompts and single steps only",
        "onnxruntime-genai in float16",
        multi_head(ROTATED, PROMPT_OR_STEP),
        {"tamiz.Attention": 1, "com.microsoft.RotaryEmbedding": 0},
        continued=False,
        shown="`Attention`",
    ),
    Form(
        "attention",
        "`Attention` and `RotaryEmbedding` of ONNX, opset 23",
        "torch with `dynamo=True`, onnxscript",
        multi_head(ROTATED_23, BIAS, opset=23, domain=""),
        {"tamiz.Attention": 1, "RotaryEmbedding": 0},
        shown="`Attention`",
    ),
    Form(
        "attention",
        "… whose cosines and sines each run computes",
        "torch with `dynamo=True`, opset 23",
        multi_head(ROTATED_COMPUTED, BIAS, opset=23, domain=""),
        {"tamiz.Attention": 1, "RotaryEmbedding": 0},
        shown="`Attention`",
    ),
    Form(
        "attention",
        "primitive ops, `RotaryEmbedding` of a part of each head",
        "onnxruntime.transformers (Phi 3)",
        primitive("".join(TURNED_IN_PART.format(x) for x in "qk")),
        {"tamiz.Attention": 1, "com.microsoft.RotaryEmbedding": 0, "MatMul": 5},
        shown="`Attention`",
    ),
    Form(
        "attention",
        "… keys with batch and heads in one dimension",
        "torch with `dynamo=True`, opset 18",
        primitive(keys=FLAT_KEYS),
        {"tamiz.Attention": 1, "MatMul": 5},
        shown="`Attention`",
    ),
    Form(
        "attention",
        "… a past behind a `Concat` of one value",
        "torch with `dynamo=False`",
        primitive(past="past = Concat <axis = -2> (past_key_values__0__key)"),
        {"tamiz.Attention": 1, "Concat": 0},
        shown="`Attention`",
    ),
    Form(
        "norm",
        "`SimplifiedLayerNormalization`",
        "ONNX Runtime, onnxruntime-genai",
        block("y = SimplifiedLayerNormalization <axis = -1> (x, w)", w=SCALE),
        {"tamiz.RMSNorm": 1},
    ),
    Form(
        "norm",
        "`RMSNormalization`, opset 23",
        "torch with `dynamo=True`",
        block("y = RMSNormalization <axis = -1> (x, w)", opset=23, w=SCALE),
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
            w=SCALE,
            b=SHIFT,
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
            w=SCALE,
            b=SHIFT,
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
            feed_forward(text, gated=False, b=numbers(96)),
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
            w=numbers(64, 128, scale=0.2),
            b=numbers(128),
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
            w=numbers(64, 128, scale=0.2),
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
            w=WEIGHT,
            c=numbers(96),
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
        "… the first of which joins heads",
        "torch with `dynamo=True` (GPT-2)",
        block(
            """h = Reshape(x, heads) f = Reshape(h, rows) p = Gemm(f, w, c)
            s = Shape <start = 0, end = 2> (x) o = Concat <axis = 0> (s, n) y = Reshape(p, o)""",
            width=96,
            w=WEIGHT,
            c=numbers(96),
            heads=np.array([0, 0, 4, 16]),
            rows=np.array([-1, 64]),
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
            w=numbers(96, 64, scale=0.2),
        ),
        {"MatMul": 1, "com.microsoft.FusedMatMul": 0},
        shown="`MatMul`, `Mul`",
    ),
)
