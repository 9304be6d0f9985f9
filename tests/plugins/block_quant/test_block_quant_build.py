"""block-quant through build: the graph that comes out, and what it computes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import tamiz_ops
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.files.bundle import Bundle, Source, write_manifest
from tamiz.files.errors import TamizError
from tamiz.planning.costs import predict, totals
from tamiz.planning.plan import choose, make_plan
from tamiz.plugins import Plugins
from tamiz.reporting.report import Report
from tamiz.survey.export import export
from tamiz.survey.survey import survey
from tamiz_block_quant.fit import quantize
from tamiz_block_quant.unmasked import PackUnmasked

pytestmark = pytest.mark.slow


def built(plugins: Plugins, source: Path, **fields: Any) -> tuple[Bundle, Report]:
    out = source.parent / "built"
    report = build(source, out, choose(plugins.techniques(), {"block-quant": fields}), plugins)
    return Bundle.open(out), report


def run(model: Path, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = ort.SessionOptions()
    tamiz_ops.register(options)
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def packed_weights(bundle: Bundle) -> dict[str, ir.Value]:
    initializers = ir.load(bundle.model).graph.initializers
    return {name: value for name, value in initializers.items() if value.dtype == ir.DataType.UINT8}


def test_a_q4_1_model_loses_nothing(plugins: Plugins, tiny_dense: Path) -> None:
    _, report = built(plugins, tiny_dense)
    assert report.totals.replaced == report.totals.exact == 16
    # What is left is the rounding of activations to 16 bits.
    assert report.check["max_relative_error"] < 1e-3
    assert report.check["kl_mean"] < 1e-6
    assert report.check["top1_agreement"] == 1


def test_a_tied_head_and_embedding_share_one_tensor(plugins: Plugins, tiny_dense: Path) -> None:
    bundle, _ = built(plugins, tiny_dense)
    assert sum("embed" in name for name in packed_weights(bundle)) == 1
    assert len(packed_weights(bundle)) == 2 * 7 + 1


@pytest.mark.parametrize("fields", [{}, {"scale_bits": 8}])
def test_the_bytes_are_those_of_the_plan(
    plugins: Plugins, tiny_dense: Path, fields: dict[str, Any]
) -> None:
    choices = choose(plugins.techniques(), {"block-quant": fields})
    found = survey(Bundle.open(tiny_dense), plugins)
    predictions = predict(found, make_plan(found.sites, choices), context=0)
    expected = {p.plan.site.id: p.after.stored for p in predictions if p.plan.site.weight}
    bundle, report = built(plugins, tiny_dense, **fields)
    assert {s: entry.bytes_after for s, entry in report.sites.items()} == expected
    packed = sum(int(value.const_value.nbytes) for value in packed_weights(bundle).values())
    rest = totals(found, predictions)[1].stored - packed
    assert rest == sum(
        int(value.const_value.nbytes)
        for name, value in found.model.graph.initializers.items()
        if name not in {site.weight for site in found.sites}
    )


def test_scales_of_8_bits(plugins: Plugins, tiny_dense: Path) -> None:
    bundle, report = built(plugins, tiny_dense, scale_bits=8)
    attempt = report.sites["layers.0.ffn_up"].techniques[0]
    assert attempt.bits_per_weight < 5
    assert attempt.metrics["rel_l2"] < 0.01
    assert report.check["kl_mean"] < 1e-2
    assert sum("embed" in name for name in packed_weights(bundle)) == 1


def test_bits_of_8_everywhere(plugins: Plugins, tiny_dense: Path) -> None:
    _, report = built(plugins, tiny_dense, bits=8)
    attempt = report.sites["layers.0.ffn_up"].techniques[0]
    assert attempt.bits_per_weight == 8.5
    assert attempt.metrics["rel_l2"] < 0.01
    assert report.check["kl_mean"] < 1e-3


def write_dense(folder: Path, model: onnx.ModelProto) -> Path:
    folder.mkdir()
    onnx.save_model(model, folder / "model.onnx")
    write_manifest(folder, "dense", Source("test"))
    return folder


def test_gemm_and_matmul_with_bias_in_any_graph(plugins: Plugins, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    w1, b1 = generator.normal(size=(50, 72)).astype(np.float32), np.arange(50, dtype=np.float32)
    w2, b2 = generator.normal(size=(50, 33)).astype(np.float32), np.arange(33, dtype=np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], "first", transB=1),
        helper.make_node("MatMul", ["h", "w2"], ["p"], "second"),
        helper.make_node("Add", ["p", "b2"], ["y"], "bias"),
    ]
    constants = {"w1": w1, "b1": b1, "w2": w2, "b2": b2}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 72])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 33])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    bundle, report = built(plugins, write_dense(tmp_path / "dense", model), bits=4)
    assert report.totals.replaced == 2
    x = generator.normal(size=(5, 72)).astype(np.float32)
    v1, v2 = quantize(w1, 4)[0].dequantize(), quantize(w2.T, 4)[0].dequantize()
    expected = (x.astype(np.float64) @ v1.T + b1) @ v2.T + b2
    found = run(bundle.model, {"x": x})
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize(("outputs", "replaced"), [(4, 0), (5, 1)])
def test_a_weight_that_would_grow_stays_dense(
    plugins: Plugins, tmp_path: Path, outputs: int, replaced: int
) -> None:
    """Packed are whole tiles of 16 outputs, with 34 bytes a group of 32 inputs: 4.25 outputs."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, outputs])],
        [numpy_helper.from_array(np.ones((64, outputs), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    _, report = built(plugins, write_dense(tmp_path / "dense", model), format="q8_0")
    assert report.totals.replaced == replaced


def test_a_weight_that_cannot_be_packed_stays_dense(plugins: Plugins, tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    weight[0, 0] = 1e7
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    bundle, report = built(plugins, write_dense(tmp_path / "dense", model))
    (entry,) = report.sites.values()
    assert not entry.techniques[0].decision.applied
    assert "fp16's largest" in entry.techniques[0].decision.reason
    assert [node.op_type for node in ir.load(bundle.model).graph] == ["MatMul"]
    assert report.check["max_relative_error"] == 0


def test_a_q4_0_model_is_recovered_too(
    plugins: Plugins,
    make_gguf: Callable[[Path, gguf.GGMLQuantizationType], None],
    tmp_path: Path,
) -> None:
    make_gguf(tmp_path / "tiny.gguf", gguf.GGMLQuantizationType.Q4_0)
    source = export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", plugins, "float32").path
    _, report = built(plugins, source)
    assert report.totals.exact == report.totals.replaced == 16


@pytest.mark.parametrize("scale_bits", [16, 8])
def test_what_no_mask_skips_is_packed_in_tiles(scale_bits: int, tmp_path: Path) -> None:
    n, k = 70, 100
    quantized, _ = quantize(
        np.random.default_rng(0).standard_normal((n, k), np.float32), 4, scale_bits
    )
    parts: list[Any] = [quantized.quants, quantized.scales, quantized.minima]
    if scale_bits == 8:
        parts.append(quantized.units)
        channels = tamiz_ops.pack_channels_in_units(*parts)
    else:
        channels = tamiz_ops.pack_channels(*parts)
    attributes: dict[str, Any] = {"n": n, "k": k, "scale_bits": scale_bits}
    node = helper.make_node(
        "ChannelMatMul", ["x", "w.channels"], ["y"], domain="tamiz", **attributes
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, n])],
        [numpy_helper.from_array(channels, "w.channels")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("tamiz", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), tmp_path / "a.onnx")
    model = ir.load(tmp_path / "a.onnx")
    assert PackUnmasked()(model).modified
    ir.save(model, tmp_path / "b.onnx")
    assert [(node.op_type, node.attributes["bits"].as_int()) for node in model.graph] == [
        ("BlockMatMul", 4)
    ]
    feeds = {"x": np.random.default_rng(1).normal(size=(1, k)).astype(np.float32)}
    before, after = run(tmp_path / "a.onnx", feeds), run(tmp_path / "b.onnx", feeds)
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("format", ["q8_0", "q5_0", "iq4_nl"])
def test_a_named_format_is_packed_everywhere(
    plugins: Plugins, tiny_dense: Path, format: str
) -> None:
    out, options = tiny_dense.parent / "built", Options(max_dppl=None)
    chosen = choose(plugins.techniques(), {"block-quant": {"format": format}})
    report = build(tiny_dense, out, chosen, plugins, options)
    bundle = Bundle.open(out)
    nodes = [n for n in ir.load(bundle.model).graph if n.op_type != "Fused"]
    assert all(name.endswith(f".{format}") for name in packed_weights(bundle))
    assert len(packed_weights(bundle)) == 2 * 7 + 1
    assert not any(node.op_type == "MatMul" for node in nodes)
    assert report.totals.replaced == 16


def test_a_format_whose_blocks_do_not_fit_is_refused(plugins: Plugins, tiny_dense: Path) -> None:
    _, report = built(plugins, tiny_dense, format="q3_k")
    reason = report.sites["layers.0.ffn_up"].decision.reason
    assert "q3_k stores blocks of 256 inputs, but it has 64" in reason
    assert report.totals.replaced == 0


def test_an_unknown_format_is_refused(plugins: Plugins) -> None:
    with pytest.raises(TamizError, match="--block-quant-format=q7: expected one of: q4_0, q4_1"):
        choose(plugins.techniques(), {"block-quant": {"format": "q7"}})
