"""Fixtures that all tests share: the plugins and the tiny llama, as GGUF and as a dense bundle."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tamiz.testing import export_tiny_llama, write_tiny_llama

if TYPE_CHECKING:
    from tamiz.plugins import Plugins

# A machine that does other work is slow: that fails no test.
settings.register_profile("tamiz", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tamiz")

#: Plugins that are no techniques.
ALWAYS = {"exporters", "graph-passes"}


def pytest_configure(config: pytest.Config) -> None:
    """Disables all plugins but those that TAMIZ_TEST_ONLY names, where it is set."""
    if names := os.environ.get("TAMIZ_TEST_ONLY"):
        only, installed = set(names.split(",")), {p.name for p in entry_points(group="tamiz")}
        if unknown := only - installed:
            raise pytest.UsageError(f"TAMIZ_TEST_ONLY names {unknown}, which are not installed")
        os.environ["TAMIZ_DISABLE_PLUGINS"] = ",".join(sorted(installed - only - ALWAYS))


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
def plugins() -> Plugins:
    """The installed plugins."""
    from tamiz.plugins import load

    return load()


@pytest.fixture(scope="session")
def _exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tamiz.plugins import load

    return export_tiny_llama(tmp_path_factory.mktemp("tiny"), load())


@pytest.fixture
def tiny_dense(_exported: Path, tmp_path: Path) -> Path:
    """A dense bundle of the tiny llama; a copy of one's own."""
    return Path(shutil.copytree(_exported, tmp_path / "tiny-dense"))
