"""Ops of the domain `tamiz` as standard ones: what a graph gives stays, within float rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from kit.arrays import random
from kit.decoders import CASES, attentions, decoder, largest_error, run_passes, session
from kit.few_bits import need_few_bits
from tamiz.api.passes import Phase
from tamiz.files.errors import TamizError
from tamiz.survey.standard.write import rewrite
from tamiz_ops import formats

MODELS: dict[str, dict[str, Any]] = {
    "grouped heads": {},
    "one key head": {"kv_heads": 1},
    "half of the head rotates": {"rotary": 8},
    "biases and a head of its own": {"biases": True, "tied": False},
    "head norms": {"head_norms": True},
    "head norms behind the rotation": {"norms_behind": True},
    "a bias by distance": {"slopes": True},
    "soft caps": {"score_cap": 1.5, "logit_cap": 4.0},
    "sinks": {"sinks": True},
}


def plain(model: ir.Model) -> ort.InferenceSession:
    """A session without the library."""
    assert "tamiz" not in {node.domain for node in model.graph}
    return ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS.keys())
def test_a_recognised_decoder(options: dict[str, Any], fused: bool) -> None:
    model = decoder(**options)
    before = session(model)
    run_passes(model)
    if fused:
        run_passes(model, Phase.FUSE)
    rewrite(model)
    assert [value.name for value in model.graph.inputs] == [v.name for v in before.get_inputs()]
    after = plain(model)
    for case in CASES:
        assert largest_error(before, after, case) < 1e-5


@pytest.mark.parametrize("window", [1, 3, 100])
def test_a_window_counts_visible_keys(window: int) -> None:
    model = decoder()
    run_passes(model)
    for node in attentions(model):
        for name, value in (("window", window), ("sinks", 0)):
            node.attributes[name] = ir.AttrInt64(name, value)
    before = session(model)
    rewrite(model)
    after = plain(model)
    for case in CASES:
        assert largest_error(before, after, case) < 1e-5


@pytest.mark.parametrize(("bits", "held"), [(4, False), (8, True)])
def test_weights_that_a_build_made(bits: int, held: bool) -> None:
    model = product("q8_0" if held else "q4_1", 40, 64)
    for node in model.graph:
        del node.attributes["format"]
        node.attributes["bits"] = ir.AttrInt64("bits", bits)
    before = session(model)
    rewrite(model, quantized=True)
    assert ("MatMulNBits" in {node.op_type for node in model.graph}) == held
    if held:
        need_few_bits()
    given = {"ids": np.array([0, 39, 7]), "x": random(3, 64)}
    for a, b in zip(before.run(None, given), plain(model).run(None, given), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-3)


_PRODUCT = """<ir_version: 10, opset_import: ["" : 22, "tamiz" : 1]>
g (int64[tokens] ids, float[rows, {1}] x) => (float[tokens, {1}] e, float[rows, {0}] y) {{
    e = tamiz.BlockGather <format = "{2}", n = {0}, k = {1}> (ids, w)
    y = tamiz.BlockMatMul <format = "{2}", n = {0}, k = {1}> (x, w, , b)
}}
"""


def product(name: str, n: int, k: int) -> ir.Model:
    format = formats.find_format(name)
    if isinstance(format, formats.Affine):
        source = np.random.default_rng(3)
        count = -(-k // format.group) if format.group else 1
        scales = random(n, count, scale=0.1).astype("f2" if format.halves else "f4")
        zeros = source.uniform(0, 1 << format.bits, (n, count))
        kind = np.float32 if format.float_zeros else np.uint8
        quants = source.integers(0, 1 << format.bits, (n, k), np.uint8)
        parts = formats.Parts(quants, scales, zeros.astype(kind) if format.minimum else None)
        tiles = formats.pack_parts(format, parts)
    else:
        tiles = formats.quantize(format, random(n, k))
    proto = onnx.parser.parse_model(_PRODUCT.format(n, k, name))
    constants: dict[str, np.ndarray] = {"w": tiles, "b": random(n)}
    for key, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, key))
    return ir.from_proto(proto)


#: Formats that the ops of ONNX Runtime hold, with numbers of inputs, and whether a lookup does.
HELD = {
    "q4_0": (96, True),
    "q8_0": (64, True),
    "affine4_32": (96, True),
    "affine4_16hz": (96, True),
    "affine4_64z": (128, True),
    "affine4_32z": (96, False),  # rows of zero points that end within a byte
    "affine4_32f": (64, False),
    "affine8_128z": (256, True),
    "affine8_row": (256, True),
    "affine4_rowz": (200, False),
    "affine4_1024": (2048, True),
    "affine2_32z": (64, False),
}


@pytest.mark.parametrize("name", [*HELD, "q4_1", "q4_k"])
@pytest.mark.parametrize("quantized", [False, True])
def test_weights_keep_their_values(name: str, quantized: bool) -> None:
    k, looked_up = HELD.get(name, (256, False))
    model = product(name, 40, k)
    tiles = model.graph.initializers["w"].const_value
    assert tiles is not None
    values = formats.dequantize(formats.find_format(name), tiles.numpy(), 40, k)
    rewrite(model, quantized=quantized)
    held = quantized and name in HELD
    ops = [node.op_type for node in model.graph]
    assert ("MatMulNBits" in ops) == held
    assert ("GatherBlockQuantized" in ops) == (held and looked_up)
    if held:
        need_few_bits()
    x, ids = random(3, k), np.array([0, 39, 7])
    rows, y = plain(model).run(None, {"ids": ids, "x": x})
    np.testing.assert_array_equal(rows, values[ids])
    expected = x.astype(np.float64) @ values.T.astype(np.float64)
    terms = np.abs(x) @ np.abs(values).T
    assert (np.abs(y - expected - random(40)) <= 1e-6 * (terms + 1)).all()


_CLAMPED = """<ir_version: 10, opset_import: ["" : 22, "tamiz" : 1]>
g (float[rows, 40] gate, float[rows, 40] up) => (float[rows, 40] y) {
    y = tamiz.SwiGLU <activation = "quick_gelu", limit = 2.0> (gate, up)
}
"""


def test_a_clamped_activation() -> None:
    model = ir.from_proto(onnx.parser.parse_model(_CLAMPED))
    before = session(model)
    rewrite(model)
    given = {"gate": random(9, 40, scale=3), "up": random(9, 40, seed=1, scale=3)}
    [expected], [found] = before.run(None, given), plain(model).run(None, given)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


_ACTIVATED = """<ir_version: 10, opset_import: ["" : 18, "tamiz" : 1]>
g (float[rows, 40] gate, float[rows, 40] up) => (float[rows, 40] y) {{
    y = tamiz.SwiGLU <activation = "{0}"{1}> (gate{2})
}}
"""
_TRAINED = ", alpha_p = 0.8, alpha_n = 1.1, beta = 0.5, epsilon = -0.1"


@pytest.mark.parametrize("up", ["", ", up"])
@pytest.mark.parametrize(
    "activation", ["silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "xielu"]
)
def test_activations_with_and_without_a_gate(activation: str, up: str) -> None:
    trained = _TRAINED if activation == "xielu" else ""
    model = ir.from_proto(onnx.parser.parse_model(_ACTIVATED.format(activation, trained, up)))
    before = session(model)
    rewrite(model)
    given = {"gate": random(9, 40, scale=3), "up": random(9, 40, seed=1)}
    [expected], [found] = before.run(None, given), plain(model).run(None, given)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


_SUMS = """<ir_version: 10, opset_import: ["" : {0}, "tamiz" : 1]>
g (float[rows, 40] x, float[rows, 40] r) => (float[rows, 40] y, float[rows, 40] z)
<float[40] w, float[40] b> {{
    n, s = tamiz.LayerNorm <epsilon = 1e-3> (x, w, {1}, {2})
    m, t = tamiz.LayerNorm (n, w, {1}, s)
    y = tamiz.Sum (m, t)
    z = tamiz.Sum (s, n)
}}
"""


def norms_and_sums(opset: int, bias: str, residual: str) -> ir.Model:
    proto = onnx.parser.parse_model(_SUMS.format(opset, bias, residual))
    for seed, name in enumerate("wb"):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(random(40, seed=seed), name))
    for number, node in enumerate(proto.graph.node):
        node.name = f"node {number}"
    return ir.from_proto(proto)


@pytest.mark.parametrize("bias", ["", "b"])
@pytest.mark.parametrize("residual", ["", "r"])
def test_norms_with_a_mean_and_sums(bias: str, residual: str) -> None:
    model = norms_and_sums(18, bias, residual)
    before = session(model)
    rewrite(model)
    given = {"x": random(9, 40), "r": random(9, 40, seed=2)}
    for found, expected in zip(plain(model).run(None, given), before.run(None, given), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_norm_with_a_mean_needs_an_opset_that_has_it() -> None:
    with pytest.raises(TamizError, match=r"\(LayerNorm\) before opset 17 has no form"):
        rewrite(norms_and_sums(16, "b", "r"))


def test_what_has_no_form_is_named() -> None:
    model = decoder()
    run_passes(model)
    attentions(model)[0].attributes["cache_bits"] = ir.AttrInt64("cache_bits", 8)
    with pytest.raises(TamizError, match=r"\(Attention\) with a cache of 8 bits has no form"):
        rewrite(model)
