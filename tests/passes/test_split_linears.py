"""Linears of whose outputs parts are used, with weights as a file stores them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from kit.arrays import random
from kit.decoders import run_passes, session
from tamiz_ops import formats

N, K = 96, 64
_MODEL = """<ir_version: 10, opset_import: ["" : 22, "tamiz" : 1]>
g (float[batch, sequence, 64] x)
=> (float[batch, sequence, {0}] q, float[batch, sequence, {1}] k, float[batch, sequence, {2}] v) {{
    p = tamiz.BlockMatMul <format = "{3}", n = 96, k = 64> (x, w, , b)
    q, k, v = Split <axis = -1> (p, sizes)
}}
"""


def packed(name: str) -> np.ndarray:
    format = formats.find_format(name)
    if format.is_float:
        return formats.pack_parts(format, formats.Parts(random(N, K).astype("<f2").view(np.uint16)))
    if not isinstance(format, formats.Affine):
        return formats.quantize(format, random(N, K))
    quants = np.random.default_rng(3).integers(0, 1 << format.bits, (N, K), np.uint8)
    count = K // format.group if format.group else 1
    zeros = np.random.default_rng(4).integers(0, 1 << format.bits, (N, count), np.uint8)
    scales = random(N, count).astype(np.float16 if format.halves else np.float32)
    return formats.pack_parts(
        format, formats.Parts(quants, scales, zeros if format.minimum else None)
    )


def model(name: str, sizes: list[int]) -> ir.Model:
    proto = onnx.parser.parse_model(_MODEL.format(*sizes, name))
    constants = {"w": packed(name), "b": random(N, seed=2), "sizes": np.array(sizes)}
    for key, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, key))
    return ir.from_proto(proto)


@pytest.mark.parametrize("name", ["q4_0", "q8_0", "affine4_32", "affine8_rowhz", "f16"])
def test_each_part_gets_the_rows_of_its_own(name: str) -> None:
    before = model(name, [64, 16, 16])
    after = before.clone()
    assert run_passes(after) == []
    linears = [node for node in after.graph if node.op_type == "BlockMatMul"]
    assert [node.attributes["n"].as_int() for node in linears] == [64, 16, 16]
    assert len(after.graph) == 3
    given = {"x": random(2, 3, K)}
    for a, b in zip(session(before).run(None, given), session(after).run(None, given), strict=True):
        np.testing.assert_array_equal(b, a)


def test_parts_that_begin_inside_of_a_tile_stay_together() -> None:
    after = model("q4_0", [56, 24, 16])
    notes = run_passes(after)
    assert "Its parts do not begin at multiples of 16 outputs." in {note.reason for note in notes}
    assert [node.op_type for node in after.graph] == ["BlockMatMul", "Split"]
