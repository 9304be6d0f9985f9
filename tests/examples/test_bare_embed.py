"""Search by embeddings in a bare session."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.command_line import ok
from kit.encoders import write_transformer
from kit.scripts import load_script
from tamiz.runtime.load import load_model

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "bare_embed.py"
MODES = ("mean", "cls", "max", "lasttoken")
LINES = ["w3 w4 w5 w6", "w7", "w3 w4 w5 w6 w8", "w20 w21 w22 w23 w24 w25 w26", "w9 w10"]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bare")
    for name in MODES:
        write_transformer(folder / f"dense-{name}", pooling=name)
        ok("build", folder / f"dense-{name}", "-o", folder / name, "--block-quant-format=q8_0")
    return folder


@pytest.mark.parametrize("pooling", MODES)
def test_padding_changes_no_embedding(bundles: Path, pooling: str) -> None:
    script: Any = load_script("examples/bare_embed.py")
    encoder = script.Encoder(bundles / pooling, threads=1)
    together = encoder.embeddings(LINES)
    alone = np.concatenate([encoder.embeddings([line]) for line in LINES])
    np.testing.assert_allclose(together, alone, atol=2e-6)
    ours: Any = load_model(bundles / pooling, threads=1)
    ids = np.array([[0, 7, 1]])
    np.testing.assert_allclose(alone[1:2], ours.embeddings(ids), atol=2e-6)


def test_the_nearest_lines_are_printed(bundles: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join([*LINES, "", "w11"]))
    command: list[str | Path] = [
        sys.executable,
        SCRIPT,
        bundles / "mean",
        tmp_path / "texts.txt",
        "w3 w4 w5 w6",
        "--most",
        "2",
    ]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    first, second = printed.splitlines()
    assert first == "1.0000  w3 w4 w5 w6"
    assert second.endswith("w3 w4 w5 w6 w8")
    assert 0.5 < float(second.split()[0]) < 1
