"""A small llama as ONNX Runtime's own tools quantise it: export, build, and the same numbers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import QuantFormat, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.transformers.float16 import convert_float_to_float16

from kit.beside_onnxruntime import OPTIONS, expected, run
from kit.decoders import HEAD_DIM, LAYER_SITES, decoder
from tamiz.building.build import build
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz.survey.export import export
from tamiz.survey.survey import survey

pytestmark = pytest.mark.filterwarnings("ignore")

LINEARS = 2 * 7 + 1


def proto() -> onnx.ModelProto:
    return ir.to_proto(decoder(tied=False, biases=True))


def feeds(cache: type = np.float32) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {
        "input_ids": rng.integers(0, 250, (2, 5)),
        "attention_mask": np.ones((2, 8), np.int64),
        "position_ids": np.tile(np.arange(3, 8), (2, 1)),
    }
    for layer in range(2):
        for part in ("key", "value"):
            past: np.ndarray = np.asarray(rng.standard_normal((2, 2, 3, HEAD_DIM)), cache)
            found[f"past_key_values.{layer}.{part}"] = past
    return found


def nbits(**settings: Any) -> Callable[[Path], onnx.ModelProto]:
    def quantise(folder: Path) -> onnx.ModelProto:
        logging.disable(logging.INFO)  # a line a node
        quantizer = MatMulNBitsQuantizer(proto(), **settings)
        quantizer.process()
        return quantizer.model.model

    return quantise


def dynamic(folder: Path) -> onnx.ModelProto:
    onnx.save(proto(), folder / "float32.onnx")
    quantize_dynamic(
        folder / "float32.onnx",
        folder / "dynamic.onnx",
        op_types_to_quantize=["MatMul"],
        extra_options={"MatMulConstBOnly": True},
    )
    return onnx.load(folder / "dynamic.onnx")


def halves(folder: Path) -> onnx.ModelProto:
    return convert_float_to_float16(proto())


#: The tool, the formats of the linears, the largest error relative to the largest number.
MADE: dict[str, tuple[Callable[[Path], onnx.ModelProto], set[str], float]] = {
    "4 bits": (nbits(bits=4, block_size=32), {"affine4_32z"}, 1e-4),
    "4 bits, symmetric": (
        nbits(bits=4, block_size=32, is_symmetric=True),
        {"affine4_32"},
        1e-4,
    ),
    "4 bits in blocks of 16": (nbits(bits=4, block_size=16), {"affine4_16z"}, 1e-4),
    "4 bits in blocks of 128": (nbits(bits=4, block_size=128), {"affine4_rowz"}, 1e-4),
    "8 bits": (nbits(bits=8, block_size=32), {"affine8_32z"}, 1e-4),
    "4 bits, QDQ": (
        nbits(bits=4, block_size=32, quant_format=QuantFormat.QDQ),
        {"affine4_32z"},
        1e-4,
    ),
    "float16": (halves, {"f16"}, 1e-2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_all_linears_are_sites_and_the_numbers_stay(
    name: str, tmp_path: Path, plugins: Plugins
) -> None:
    make, formats, tolerance = MADE[name]
    quantised = make(tmp_path)
    onnx.save(quantised, tmp_path / "model.onnx")
    dense = export(str(tmp_path / "model.onnx"), tmp_path / "dense", plugins)
    found = survey(dense, plugins)
    expected_sites = {f"layers.{layer}.{site}" for layer in range(2) for site in LAYER_SITES}
    assert expected_sites | {"output"} <= {site.id for site in found.sites}
    linears = [site for site in found.sites if site.weight and site.id != "tok_embd"]
    assert len(linears) == LINEARS
    assert {site.format for site in linears} == formats
    none = dict.fromkeys(plugins.techniques())
    build(dense.path, tmp_path / "built", choose(plugins.techniques(), none), plugins, OPTIONS)
    ops = Counter(node.op_type for node in ir.load(tmp_path / "built" / "model.onnx").graph)
    assert not ops["MatMulNBits"]
    half = name == "float16"
    # Optimised, DequantizeLinear before MatMul becomes a product that rounds its input to 8 bits.
    given = feeds(np.float16 if half else np.float32)
    reference = expected(quantised, given, optimised="QDQ" not in name)
    built = run(str(tmp_path / "built" / "model.onnx"), feeds(), ops=True)
    assert built.keys() == reference.keys()
    for output, value in reference.items():
        value = value.astype(np.float32)
        error = np.abs(built[output] - value).max() / np.abs(value).max()
        assert error <= tolerance, output


@pytest.mark.slow
def test_what_rounds_its_input_too_stays_with_the_reason(tmp_path: Path, plugins: Plugins) -> None:
    onnx.save(dynamic(tmp_path), tmp_path / "model.onnx")
    dense = export(str(tmp_path / "model.onnx"), tmp_path / "dense", plugins)
    notes = [note.reason for note in survey(dense, plugins).notes]
    assert sum("it also rounds its input to 8 bits" in reason for reason in notes) == LINEARS
