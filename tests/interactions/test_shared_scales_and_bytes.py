"""block-quant with a scale for 128 inputs, and activation-bits: products of bytes."""

from pathlib import Path

import onnx_ir as ir
import pytest

from tamiz.building.build import build
from tamiz.files.bundle import Bundle
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins


@pytest.mark.slow
def test_a_build_marks_products_of_layers(plugins: Plugins, tiny_dense: Path) -> None:
    out = tiny_dense.parent / "shared"
    wanted = {"block-quant": {"bits": 8, "scale_inputs": 128}, "activation-bits": {}}
    build(tiny_dense, out, choose(plugins.techniques(), wanted), plugins)
    programs = [n.attributes["program"].as_string() for n in ir.load(Bundle.open(out).model).graph
                if n.op_type == "Fused"]  # fmt: skip
    lines = [line for program in programs for line in program.splitlines()]
    products = [line for line in lines if line.startswith("BlockMatMul")]
    shared = [line for line in products if "scale_inputs=128" in line]
    assert len(shared) == 14  # of two layers
    assert len(products) == 15  # and the head
    assert all("activation_bits=8" in line for line in products)
