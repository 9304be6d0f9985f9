"""Graphs that other tools make of tiny models: all linears and attentions are sites, encoders need
no padding, and the recognised graph computes what ONNX Runtime computes from the tool's file.

Needs torch and the tools; what is missing is skipped by name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from kit.decoders import run_passes, session
from kit.hf_configs import SHAPE
from kit.tool_graphs import DECODERS, MODELS, TOOLS, write_torch
from tamiz.api.passes import Phase
from tamiz.api.site import SiteKind
from tamiz_exporters.onnx import export
from tamiz_passes.sites import find_sites

pytest.importorskip("torch", reason="torch is not installed (extra 'export')")
pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

#: What the tools import besides transformers.
_NEEDS = {
    "genai": "onnxruntime_genai",
    "torch": "torch",
    "torchscript": "torch",
    "olive": "olive",
}
_CASES = [(tool, model) for tool, made in TOOLS.items() for model in made.models]
#: Masks and numbers of new tokens, without padding: GroupQueryAttention knows none at the left.
_RUNS = (([[1] * 8] * 2, 8), ([[1] * 12], 4), ([[1] * 12] * 2, 1))
_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
}
_TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def torch_folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root, made = tmp_path_factory.mktemp("torch"), {}

    def write(name: str) -> Path:
        if name not in made:
            made[name] = write_torch(name, root / name)
        return made[name]

    return write


@pytest.mark.parametrize(("tool", "name"), _CASES, ids=lambda part: part.replace(" ", "-"))
def test_a_graph_of_a_tool(tool: str, name: str, tmp_path: Path, torch_folder: Any) -> None:
    needed = _NEEDS.get(tool.split()[0], "optimum.exporters.onnx")
    pytest.importorskip(needed, reason=f"{needed} is not installed")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    path = TOOLS[tool].make(name, torch_folder(name), tmp_path / "made")
    dense = tmp_path / "dense"
    dense.mkdir()
    export(str(path), dense)
    model = ir.load(dense / "model.onnx")
    run_passes(model)
    sites, _ = find_sites(model)
    linears = {s.node for s in sites if s.weight and s.kind is not SiteKind.EMBEDDING}
    left = [
        node.name
        for node in model.graph
        if node.op_type in ("MatMul", "Gemm", "MatMulNBits", "FusedMatMul", "BlockMatMul")
        and node.inputs[1] is not None
        and node.inputs[1].const_value is not None
        and node.name not in linears
    ]
    assert left == []
    if name in DECODERS:
        layers = sum(1 for v in model.graph.inputs if (v.name or "").endswith(".key"))
        attentions = [s for s in sites if s.kind is SiteKind.ATTENTION and s.heads]
        assert len(attentions) == layers
    else:
        run_passes(model, Phase.FUSE)
        assert sum(map(_attends, model.graph)) == SHAPE["num_hidden_layers"]
        assert "text_begins" in {value.name for value in model.graph.inputs}
    ir.save(model, dense / "recognised.onnx", external_data="recognised.data")
    _check_equal(session(path), session(dense / "recognised.onnx"), tool)


def _attends(node: ir.Node) -> bool:
    """Whether a node is an attention over texts, or a fused node with one."""
    program = node.attributes.get("program")
    fused = program is not None and "\nTextAttention " in program.as_string()
    return node.op_type == "TextAttention" or fused


def _tolerance(tool: str) -> float:
    """Of the largest output. ONNX Runtime rounds every value of a float16 graph to 16 bits, and a
    product of quants rounds its input to 16 bits in a build."""
    if tool.endswith(("fp16", "float16")):
        return 1e-2
    quants = ("genai int4", "olive rtn", "olive hqq", "olive k-quant")
    return 1e-3 if tool in quants else _TOLERANCE


def _check_equal(before: ort.InferenceSession, after: ort.InferenceSession, tool: str) -> None:
    tolerance = _tolerance(tool)
    decodes = any(value.name.startswith("past") for value in before.get_inputs())
    kinds = {value.name: _TYPES[value.type] for value in after.get_inputs()}
    for rows, length in _RUNS:
        if len(rows[0]) != length and not decodes:
            continue
        if tool == "genai fp16" and length < len(rows[0]):
            continue  # ONNX Runtime runs its prompts only, by the shapes that it declares
        given = _feeds(before, rows, length)
        same = {name: given[name].astype(kind) for name, kind in kinds.items() if name in given}
        results = zip(before.run(None, given), after.run(None, same), strict=True)
        for number, (a, b) in enumerate(results):
            error = np.abs(a.astype(np.float32) - b).max() / np.abs(a).max()
            assert error < tolerance, (length, number)
            if number == 0 and tolerance == _TOLERANCE:
                np.testing.assert_array_equal(a.argmax(-1), b.argmax(-1))


def _feeds(model: ort.InferenceSession, rows: list[list[int]], length: int) -> dict[str, Any]:
    random, mask = np.random.default_rng(2), np.array(rows, np.int64)
    ids = random.integers(0, 250, (len(mask), length))
    known = {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": np.zeros_like(ids),
        "position_ids": np.maximum(mask.cumsum(1) - 1, 0)[:, -length:],
    }
    found = {}
    for node in model.get_inputs():
        if node.name.startswith("past"):
            size = node.shape[3] if isinstance(node.shape[3], int) else 16
            shape = (len(mask), node.shape[1], mask.shape[1] - length, size)
            found[node.name] = random.standard_normal(shape).astype(_TYPES[node.type])
        else:
            found[node.name] = known[node.name]
    return found


def test_every_model_is_made_by_a_tool() -> None:
    assert {name for made in TOOLS.values() for name in made.models} == set(MODELS)
