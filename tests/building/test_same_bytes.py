"""What docs/stability.md promises of bytes, under two instruction sets and two kernels of BLAS.

`OPENBLAS_CORETYPE` names the kernels that NumPy multiplies with. Another BLAS ignores it, and less
is tested. Each pair has a process of its own, as the variable is read once.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest

from kit.command_line import ok
from kit.rooms import ROOT
from tamiz.testing import write_tiny_llama

pytestmark = pytest.mark.slow

MACHINES = (("portable", "Prescott"), ("portable", "Haswell"), (None, "Prescott"))
TEXT = "The quick brown fox jumps over the lazy dog. Hello world, hello allocator! " * 40
#: Builds a model without a calibration, and within a size by fits that read one.
BUILDS = """
import sys
from kit.command_line import ok
dense, folder, *names = sys.argv[1:]
ok("build", dense, "-o", f"{folder}/int4", "--block-quant", "--tensor-train=off")
ok("calibrate", dense, "-o", f"{folder}/calibration", "--text", f"{dense}/../text")
for name in names:
    limits = ("--calibration", f"{folder}/calibration", "--max-mb", "0.1")
    ok("build", dense, "-o", f"{folder}/{name}", *limits)
"""


def files(bundle: Path) -> str:
    """A digest of all files of a bundle."""
    found = hashlib.sha256()
    for path in sorted(bundle.iterdir()):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def decisions(bundle: Path) -> dict[str, Any]:
    """What was done at each site, without what was measured there."""
    sites = json.loads((bundle / "report.json").read_text("utf-8"))["sites"]
    return {
        name: [(each["name"], each["config"]) for each in site["techniques"]]
        for name, site in sites.items()
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A folder of bundles for each of MACHINES."""
    folder = tmp_path_factory.mktemp("machines")
    write_tiny_llama(folder / "tiny.gguf", gguf.GGMLQuantizationType.F16)
    (folder / "text").write_text(TEXT)
    ok("export", folder / "tiny.gguf", "-o", folder / "dense")
    targets = []
    for isa, kernels in MACHINES:
        environment = {
            **os.environ,
            "OPENBLAS_CORETYPE": kernels,
            "PYTHONPATH": str(ROOT / "tests"),
        }
        environment |= {"TAMIZ_ISA": isa} if isa else {}
        targets.append(folder / f"{isa}-{kernels}")
        targets[-1].mkdir()
        names = ["chosen"] if len(targets) > 1 else ["chosen", "again"]
        done = subprocess.run(
            [sys.executable, "-c", BUILDS, folder / "dense", targets[-1], *names],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    return targets


def test_a_machine_makes_the_same_bytes_again(built: list[Path]) -> None:
    assert files(built[0] / "chosen") == files(built[0] / "again")


def test_int4_without_a_calibration_has_the_same_bytes_everywhere(built: list[Path]) -> None:
    constants = {(folder / "int4" / "model.onnx.data").read_bytes() for folder in built}
    graphs = {(folder / "int4" / "model.onnx").read_bytes() for folder in built}
    assert (len(constants), len(graphs)) == (1, 1)


def test_a_build_within_limits_decides_the_same_everywhere(built: list[Path]) -> None:
    first, *others = (decisions(folder / "chosen") for folder in built)
    assert len({json.dumps(done) for done in first.values()}) > 1  # sites have several formats
    for other in others:
        assert other == first
