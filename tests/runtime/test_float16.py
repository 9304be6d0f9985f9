"""A decoder in float16, with float16 caches, exports, builds and runs; float32 is the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from kit.command_line import ok
from kit.half import to_half
from tamiz.building.build import Options, build
from tamiz.files.bundle import MODEL
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz.survey.export import export

PROMPT = [5, 9, 17, 2]


def test_a_decoder_in_float16_runs(
    plugins: Plugins, dense_dir: Path, dense: Model, tmp_path: Path
) -> None:
    source = to_half(dense_dir, tmp_path / "half")
    export(str(source), tmp_path / "dense", plugins)
    options = Options(max_dppl=None)
    report = build(
        tmp_path / "dense", tmp_path / "built", choose(plugins.techniques(), {}), plugins, options
    )
    assert report.idle == ["block-quant"]
    assert [node.op_type for node in ir.load(tmp_path / "built" / MODEL).graph] == ["Fused"]
    expected = dense.sequence(8)
    reads = [expected.read(PROMPT).copy(), expected.step(3)]
    for name in ("dense", "built"):
        sequence = Model.load(tmp_path / name, threads=1).sequence(8)
        logits = [sequence.read(PROMPT).copy(), sequence.step(3)]  # valid until the next call
        for want, found in zip(reads, logits, strict=True):
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, want, atol=0.01)
    out = ok("run", tmp_path / "built", "hello", "--max-new-tokens=3", "--seed=0")
    assert out
