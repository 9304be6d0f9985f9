"""The tiny llama as runtime tests want it: loaded dense, and built with fp32 weights."""

from pathlib import Path

import pytest

from tamiz.building.build import build
from tamiz.planning.plan import choose
from tamiz.plugins import load
from tamiz.runtime.model import Model
from tamiz.runtime.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def dense_dir(_exported: Path) -> Path:
    """The dense bundle; not to be written to."""
    return _exported


@pytest.fixture(scope="session")
def shared_dir(_exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights behind tamiz' attention, which appends to a shared cache."""
    target = tmp_path_factory.mktemp("tiny-shared") / "built"
    plugins = load()
    build(_exported, target, choose(plugins.techniques(), {"block-quant": None}), plugins)
    return target


@pytest.fixture(scope="session")
def dense(dense_dir: Path) -> Model:
    return Model.load(dense_dir, threads=1)


@pytest.fixture(scope="session")
def shared(shared_dir: Path) -> Model:
    return Model.load(shared_dir, threads=1)


@pytest.fixture(params=["dense", "shared"])
def model(request: pytest.FixtureRequest) -> Model:
    """A model of each KV mode."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def tokenizer(dense: Model) -> Tokenizer:
    return Tokenizer(dense.bundle)
