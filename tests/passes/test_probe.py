"""A probe computes what a part of a graph says, and is given only what it need not compute."""

import numpy as np
import onnx
import onnx_ir as ir

from tamiz_passes.attention_cases import case_of
from tamiz_passes.probe import Probe


def model(nodes: str, result: str) -> ir.Model:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        g (int64[b, s] position_ids, float[b, s, 8] x) => ({result} y)
        <float[4] frequency = {{1.0, 0.5, 0.25, 0.125}}, int64[1] one = {{1}},
         int64[1] last = {{-1}}, int64[4] heads = {{0, 0, 2, 4}}, float[8, 8] weight>
        {{ {nodes} }}"""
    )
    weight = onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32), "weight")
    kept = [each for each in proto.graph.initializer if each.name != "weight"]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend([*kept, weight])
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def probed(of: ir.Model) -> np.ndarray:
    y = of.graph.outputs[0]
    return Probe(of, [y]).run([y], case_of([[1] * 5], 5))[0]


def test_a_table_whose_shape_is_read_is_computed() -> None:
    """As Phi-3's rotary tables are, which joins of batches expand."""
    nodes = """
        p = Cast <to = 1> (position_ids) column = Unsqueeze (p, last) a = Mul (column, frequency)
        t = Cos (a) table = Unsqueeze (t, one) shape = Shape (table) y = Expand (table, shape)"""
    angles = np.arange(5)[:, None] * np.array([1.0, 0.5, 0.25, 0.125])
    found = probed(model(nodes, "float[b, 1, s, 4]"))
    np.testing.assert_allclose(found[0, 0], np.cos(angles), atol=1e-6)


def test_heads_whose_length_alone_is_read_need_no_weights() -> None:
    """As the layers of T5 read it from the first one."""
    nodes = """
        k = MatMul (x, weight) k4 = Reshape (k, heads) kt = Transpose <perm = [0, 2, 1, 3]> (k4)
        y = Shape <start = 2, end = 3> (kt)"""
    np.testing.assert_array_equal(probed(model(nodes, "int64[1]")), [5])
