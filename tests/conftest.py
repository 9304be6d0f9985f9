"""Fixtures that all tests share: the tiny llama, as GGUF and as a dense bundle."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tamiz.testing import export_tiny_llama, write_tiny_llama


@pytest.fixture(scope="session")
def make_gguf() -> Callable[..., None]:
    """Writes the tiny llama with its linears in the given format."""
    return write_tiny_llama


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF of a tiny llama: linears in Q4_1, tied embedding in Q8_0."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_tiny_llama(path)
    return path


@pytest.fixture(scope="session")
def _exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tamiz.plugins import load

    return export_tiny_llama(tmp_path_factory.mktemp("tiny"), load())


@pytest.fixture
def tiny_dense(_exported: Path, tmp_path: Path) -> Path:
    """A dense bundle of the tiny llama; a copy of one's own."""
    return Path(shutil.copytree(_exported, tmp_path / "tiny-dense"))
