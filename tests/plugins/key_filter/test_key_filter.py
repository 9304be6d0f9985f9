"""key-filter through build."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from kit.decoding import stages
from tamiz.cli import main
from tamiz.runtime.model import Model

IDS = np.random.default_rng(0).integers(2, 262, 120).tolist()


def test_the_flags_and_the_step(tiny_dense: Path, tmp_path: Path) -> None:
    out = tmp_path / "sdr"
    flags = [
        "--sdr-target=attn_light",
        "--key-filter-threshold=1.2",
        "--key-filter-keep=10",
        "--max-dppl=off",
    ]
    result = CliRunner().invoke(main, ["build", str(tiny_dense), "-o", str(out), *flags])
    assert result.exit_code == 0, result.output
    attention = next(stage for stage in stages(out) if stage.op == "Attention")
    assert attention.attributes["epsilon"] == pytest.approx(1.2)
    assert attention.attributes["query_bits"] == 2
    model = Model.load(out)
    sequence = model.sequence()
    sequence.read(IDS[:-1])
    step = sequence.step(IDS[-1])
    exact = model.logits(np.array([IDS]))[0, -1]  # prefill attends to all keys
    assert 0 < np.linalg.norm(step - exact) < 0.5 * np.linalg.norm(exact)
