"""Graphs of float16 that are widened: what is rounded in them and computed anew."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from kit.graph_parts import tables
from tamiz_exporters.half_graph import computes_in_halves, widen

_ROTATION = """<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>
g (float16[batch, sequence, 64] x, int64[batch, sequence] position_ids)
=> (float16[batch, sequence, 64] y) {{
    y = {}
}}
"""
FORMS = {
    "com.microsoft": "com.microsoft.RotaryEmbedding (x, position_ids, cos, sin)",
    "": "RotaryEmbedding <num_heads = 4> (x, cos, sin, position_ids)",
}


def rotation(domain: str, constants: dict[str, np.ndarray]) -> ir.Model:
    proto = onnx.parser.parse_model(_ROTATION.format(FORMS[domain]))
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype("f2"), name))
    return ir.from_proto(proto)


def constant(model: ir.Model, name: str) -> np.ndarray:
    tensor = model.graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy()


@pytest.mark.parametrize("domain", FORMS)
def test_rotary_tables_are_computed_anew(domain: str) -> None:
    exact = tables(300)
    model = rotation(domain, exact)
    assert computes_in_halves(model)
    widen(model)
    assert not any(
        value.dtype == ir.DataType.FLOAT16 for value in model.graph.initializers.values()
    )
    for name, table in exact.items():
        found = constant(model, name)
        assert found.dtype == np.float32
        rounding = np.abs(table.astype(np.float16) - table).max()
        assert np.abs(found - table)[:64].max() < rounding / 2


def test_other_tables_keep_their_numbers() -> None:
    other = {name: table**3 for name, table in tables(300).items()}
    model = rotation("com.microsoft", other)
    widen(model)
    for name, table in other.items():
        np.testing.assert_array_equal(constant(model, name), table.astype("f2").astype("f4"))
