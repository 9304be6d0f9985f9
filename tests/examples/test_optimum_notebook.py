"""The notebook-style script for optimum runs."""

from pathlib import Path

import pytest

from kit.programs import run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("bundle", ["dense_dir", "shared_dir"])
def test_the_cells_run(bundle: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("optimum.onnxruntime", reason="needs tamiz[export]")
    folder: Path = request.getfixturevalue(bundle)
    assert run("optimum_notebook.py", folder).startswith("The capital of France is")
