"""The backward pass through the ops of a decoder, against differences of the ops in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import onnx_ir as ir
import pytest

from tamiz.survey.backward.node import UnknownOpError
from tamiz.survey.backward.products import has_weight
from tamiz.survey.backward.run import back, wanted
from tamiz_ops import formats, reference
from tamiz_ops.attention_reference import attention

TOKENS, WIDTH, HEADS, KV_HEADS = 5, 12, 3, 1
RANDOM = np.random.default_rng(0)
Arrays = dict[str, Any]


def node(
    op: str, inputs: dict[str, Any], outputs: int = 1, domain: str | None = None, **attributes: Any
) -> ir.Node:
    """A node whose inputs are computed (None) or constants (arrays)."""
    values = []
    for name, constant in inputs.items():
        value = ir.Value(name=name)
        if constant is not None:
            value.const_value = ir.tensor(constant, name=name)
            ir.Graph([], [], nodes=[], initializers=[value])
        else:
            ir.Node("", "Somewhere", [], outputs=[value])
        values.append(value)
    standard = ("MatMul", "Gemm", "Add", "Mul", "Div", "Tanh", "Slice", "Gather", "Erf")
    if domain is None:
        domain = "" if op in standard else "tamiz"
    made = [ir.Attr(k, _kind(v), v) for k, v in attributes.items()]
    return ir.Node(domain, op, values, made, num_outputs=outputs, name="n")


def _kind(value: Any) -> ir.AttributeType:
    if isinstance(value, str):
        return ir.AttributeType.STRING
    return ir.AttributeType.INT if isinstance(value, int) else ir.AttributeType.FLOAT


def rows(width: int = WIDTH) -> np.ndarray:
    return RANDOM.normal(size=(TOKENS, width)).astype(np.float32)


def check(
    at: ir.Node, values: Arrays, forward: Callable[..., list[np.ndarray]], asked: tuple[int, ...]
) -> None:
    """The backward pass through `at` against differences of ``forward(**values)``, at `asked`."""
    outputs = forward(**values)
    given = [RANDOM.normal(size=output.shape).astype(np.float32) for output in outputs]
    found = back(at, values, list(given))
    for index in asked:
        name = at.inputs[index].name
        assert name is not None
        gradient, numeric = found[index], np.zeros_like(values[name], np.float64)
        for place in np.ndindex(numeric.shape):
            losses = []
            for step in (1e-4, -1e-4):
                moved = values[name].astype(np.float64)
                moved[place] += step
                results = forward(**{**values, name: moved})
                losses.append(sum((g * y).sum() for g, y in zip(given, results, strict=True)))
            numeric[place] = (losses[0] - losses[1]) / 2e-4
        np.testing.assert_allclose(gradient, numeric, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("width", [WIDTH, 4])
def test_rms_norm_with_what_it_adds_up(width: int) -> None:
    weight = RANDOM.normal(size=width).astype(np.float32)
    at = node("RMSNorm", {"x": None, "w": weight, "r": None}, 2, epsilon=1e-3)
    assert wanted(at) == ["x", "r"]
    check(
        at,
        {"x": rows(), "r": rows()},
        lambda x, r: reference.rms_norm(x, weight, r, epsilon=1e-3),
        (0, 2),
    )


def test_swiglu() -> None:
    check(node("SwiGLU", {"g": None, "u": None}), {"g": rows(), "u": rows()},
          lambda g, u: reference.swiglu(g, u), (0, 1))  # fmt: skip


def test_scale() -> None:
    x = RANDOM.normal(size=(TOKENS, 2, WIDTH)).astype(np.float32)
    check(node("Scale", {"x": None, "w": None}), {"x": x, "w": rows(2)},
          lambda x, w: reference.run("Scale", [x, w]), (0, 1))  # fmt: skip


@pytest.mark.parametrize("shared", [False, True])
def test_expert_sum(shared: bool) -> None:
    values = {"x": RANDOM.normal(size=(TOKENS, 2, WIDTH)).astype(np.float32), "w": rows(2)}
    values |= {"shared": rows(), "share": rows(1)} if shared else {}
    at = node("ExpertSum", dict.fromkeys(values))
    check(at, values, lambda x, w, **of: reference.run("ExpertSum", [x, w, *of.values()]),
          tuple(range(len(values))))  # fmt: skip


@pytest.mark.parametrize("own", [False, True])
def test_expert_matmul(own: bool) -> None:
    sizes: dict[str, Any] = {"n": 64, "k": 32, "experts": 4, "format": "f16"}
    held = RANDOM.normal(size=(64, 32)).astype(np.float16).view(np.uint8)
    packed = formats.pack_blocks(formats.find_format("f16"), held, 32)
    chosen = np.array([[0, 2], [2, 1], [0, 1], [1, 2], [2, 0]], np.int32)
    at = node("ExpertMatMul", {"x": None, "w": packed, "e": None}, **sizes)
    x = RANDOM.normal(size=(TOKENS, 2, 32) if own else (TOKENS, 32)).astype(np.float32)
    check(at, {"x": x, "e": chosen},
          lambda x, e: reference.run("ExpertMatMul", [x, packed, e], **sizes), (0,))  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"normalize": 1, "scale": 2.0},
        {"score": "softmax_of_chosen"},
        {"score": "sigmoid", "normalize": 1},
    ],
)
def test_expert_router(settings: dict[str, Any]) -> None:
    own = np.random.default_rng(1)  # no two scores of a token are near each other
    weight = own.normal(size=(5, WIDTH)).astype(np.float32)
    sizes: dict[str, Any] = {"experts": 4, "top": 2, **settings}
    at = node("ExpertRouter", {"x": None, "w": weight}, outputs=3, **sizes)
    x = own.normal(size=(TOKENS, WIDTH)).astype(np.float32)
    check(at, {"x": x}, lambda x: reference.run("ExpertRouter", [x, weight], **sizes),
          (0,))  # fmt: skip


@pytest.mark.parametrize("groups", [(1, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("score", ["softmax", "softmax_of_chosen", "sigmoid"])
def test_expert_router_with_offset_factors_and_groups(groups: tuple[int, int], score: str) -> None:
    own = np.random.default_rng(1)
    weight = own.normal(size=(6, WIDTH)).astype(np.float32)
    bias, offset, factors = own.normal(size=(3, 6)).astype(np.float32)
    sizes: dict[str, Any] = {"experts": 6, "top": 2, "score": score, "normalize": 1}
    sizes |= {"groups": groups[0], "top_groups": groups[1]}
    inputs = {"x": None, "w": weight, "b": bias, "o": offset, "f": factors}
    read = [weight, bias, offset, factors]
    at = node("ExpertRouter", inputs, outputs=3, **sizes)
    x = own.normal(size=(TOKENS, WIDTH)).astype(np.float32)
    check(at, {"x": x}, lambda x: reference.run("ExpertRouter", [x, *read], **sizes), (0,))


def test_a_clamped_activation() -> None:
    how: dict[str, Any] = {"activation": "quick_gelu", "limit": 1.0}
    at = node("SwiGLU", {"g": None, "u": None}, **how)
    check(at, {"g": rows(), "u": rows()}, lambda g, u: reference.swiglu(g, u, **how), (0, 1))


def test_an_activation_with_trained_numbers() -> None:
    how: dict[str, Any] = {"activation": "xielu", "alpha_p": 0.8, "alpha_n": 1.1, "beta": 0.5}
    how |= {"epsilon": -1e-6}
    at = node("SwiGLU", {"g": None, "u": None}, **how)
    check(at, {"g": rows(), "u": rows()}, lambda g, u: reference.swiglu(g, u, **how), (0, 1))
    at = node("SwiGLU", {"g": None}, **how)
    check(at, {"g": rows()}, lambda g: reference.swiglu(g, **how), (0,))


@pytest.mark.parametrize("f", ["gelu", "gelu_tanh", "quick_gelu", "relu", "relu2"])
def test_activations(f: str) -> None:
    at = node("SwiGLU", {"g": None, "u": None}, activation=f)
    check(at, {"g": rows(), "u": rows()},
          lambda g, u: reference.swiglu(g, u, activation=f), (0, 1))  # fmt: skip
    at = node("SwiGLU", {"g": None}, activation=f)
    check(at, {"g": rows()}, lambda g: reference.swiglu(g, activation=f), (0,))


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 1), (2, 2)])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"window": 2, "sinks": 1},
        {"window": 3, "sinks": 0},
        {"softcap": 1.5},
        {"softcap": 1.5, "window": 3, "sinks": 0, "scale": 0.8},
    ],
)
def test_attention(
    heads: int, kv_heads: int, rotary: bool, sinks: bool, weighted: bool, choice: dict[str, Any]
) -> None:
    dim = 4
    head_sink = rows(heads)[0] if sinks else None
    query_weight = rows(dim)[0] if weighted else None
    frequency = np.array([1.0, 0.3], np.float32) if rotary else None
    inputs: Arrays = {"q": None, "k": None, "v": None}
    inputs |= {name: None for name in ("past_key", "past_value", "mask", "positions")}
    none = np.zeros(0, np.float32)
    further = sinks or weighted
    inputs |= {"frequency": frequency if rotary else none} if rotary or further else {}
    inputs |= {f"of techniques {number}": None for number in range(7 if further else 0)}
    without = np.full(heads, -np.inf, np.float32)
    inputs |= {"head_sink": head_sink if sinks else without} if further else {}
    head_slope = -np.arange(1, heads + 1, dtype=np.float32) if weighted else None
    inputs |= {"query_weight": query_weight, "head_slope": head_slope} if weighted else {}
    at = node("Attention", inputs, 3, num_heads=heads, kv_heads=kv_heads, **choice)

    def forward(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
        past = np.zeros((1, kv_heads, 0, dim))
        mask, positions = np.ones((1, TOKENS), np.int64), np.arange(TOKENS)[None]
        made = attention(
            q[None], k[None], v[None], past, past, mask, positions, frequency,
            head_sink=head_sink, query_weight=query_weight, head_slope=head_slope,
            num_heads=heads, kv_heads=kv_heads, **choice,
        )  # fmt: skip
        return [made[0][0]]

    values = {"q": rows(heads * dim), "k": rows(kv_heads * dim), "v": rows(kv_heads * dim)}
    check(at, values, forward, (0, 1, 2))


def test_products_and_sums() -> None:
    weight = RANDOM.normal(size=(WIDTH, 3)).astype(np.float32)
    check(node("MatMul", {"x": None, "w": weight}), {"x": rows()}, lambda x: [x @ weight], (0,))
    turned = node("Gemm", {"x": None, "w": weight.T, "b": weight[0]}, transB=1)
    check(turned, {"x": rows()}, lambda x: [x @ weight + weight[0]], (0,))
    assert has_weight(turned)
    assert wanted(turned) == []
    check(node("Add", {"x": None, "y": None}), {"x": rows(), "y": rows()},
          lambda x, y: [x + y], (0, 1))  # fmt: skip


def test_a_product_with_a_packed_weight_and_one_with_a_number() -> None:
    format = formats.find_format("q8_0")
    weight = RANDOM.normal(size=(20, 32)).astype(np.float32)
    blocks = gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
    packed = formats.pack_blocks(format, blocks, 32)
    rows_of_it = formats.dequantize(format, packed, 20, 32)
    at = node("BlockMatMul", {"x": None, "w": packed}, n=20, k=32, format="q8_0")
    assert has_weight(at)
    check(at, {"x": rows(32)}, lambda x: [x @ rows_of_it.T], (0,))
    at = node("Mul", {"x": None, "c": np.array(3.0, np.float32)})
    assert wanted(at) == []  # such as logits, which take memory
    check(at, {"x": rows()}, lambda x: [3 * x], (0,))
    at = node("Div", {"x": None, "c": np.array(4.0, np.float32)})
    check(at, {"x": rows()}, lambda x: [x / 4], (0,))


def test_tanh() -> None:
    at = node("Tanh", {"x": None})
    assert wanted(at) == ["x"]
    check(at, {"x": rows()}, lambda x: [np.tanh(x)], (0,))


@pytest.mark.parametrize(
    "at",
    [
        node("Erf", {"x": None}, domain="somewhere"),
        node("Gemm", {"x": None, "y": None}),
        node("Attention", {"q": None, "k": None, "v": None}, num_heads=1, kv_heads=1, keep=4),
    ],
)
def test_an_op_without_a_way_back_is_named(at: ir.Node) -> None:
    with pytest.raises(UnknownOpError, match=r"Erf|product with y|keep"):
        back(at, {name: rows() for name in "qkvxy"}, [rows()])
