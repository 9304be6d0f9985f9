"""Fixtures that all tests share: the plugins and the tiny llama as GGUF, as bundles, loaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tamiz.building.build import build
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins, load
from tamiz.runtime.model import Model
from tamiz.runtime.text.tokenizer import Tokenizer
from tamiz.testing import export_tiny_llama, write_tiny_llama

pytest.register_assert_rewrite("kit")

# A machine that does other work is slow: that fails no test.
settings.register_profile("tamiz", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tamiz")

#: Plugins that are no techniques.
ALWAYS = {"exporters", "graph-passes"}


def pytest_configure(config: pytest.Config) -> None:
    """Disables all techniques but TAMIZ_TEST_ONLY and its companions, where it is set."""
    from kit.alone import COMPANIONS  # not before the line that rewrites its asserts

    if name := os.environ.get("TAMIZ_TEST_ONLY"):
        only = {name, *COMPANIONS[name]}
        installed = {plugin.name for plugin in entry_points(group="tamiz")}
        if unknown := only - installed:
            raise pytest.UsageError(f"{unknown} are not installed, expected by kit/alone.py")
        os.environ["TAMIZ_DISABLE_PLUGINS"] = ",".join(sorted(installed - only - ALWAYS))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With TAMIZ_EVERY=20 runs each twentieth of the tests that are selected: tools/arm.py does."""
    step = int(os.environ.get("TAMIZ_EVERY", "1"))
    if step > 1:
        config.hook.pytest_deselected(items=[item for i, item in enumerate(items) if i % step])
        items[:] = items[::step]


@pytest.fixture(scope="session", autouse=True)
def unmeasured_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hides this machine's profile, on which choices depend: all machines test the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


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
    return load()


@pytest.fixture(scope="session")
def dense_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense bundle of the tiny llama; not to be written to."""
    return export_tiny_llama(tmp_path_factory.mktemp("tiny"), load())


@pytest.fixture
def tiny_dense(dense_dir: Path, tmp_path: Path) -> Path:
    """A dense bundle of the tiny llama; a copy of one's own."""
    return Path(shutil.copytree(dense_dir, tmp_path / "tiny-dense"))


@pytest.fixture(scope="session")
def shared_dir(dense_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights behind tamiz' attention, which appends to a shared cache."""
    target = tmp_path_factory.mktemp("tiny-shared") / "built"
    plugins = load()
    build(dense_dir, target, choose(plugins.techniques(), {"block-quant": None}), plugins)
    return target


@pytest.fixture(scope="session")
def dense(dense_dir: Path) -> Model:
    """The dense bundle, loaded."""
    return Model.load(dense_dir, threads=1)


@pytest.fixture(scope="session")
def shared(shared_dir: Path) -> Model:
    """The bundle with a shared cache, loaded."""
    return Model.load(shared_dir, threads=1)


@pytest.fixture(params=["dense", "shared"])
def model(request: pytest.FixtureRequest) -> Model:
    """A model of each KV mode."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def tokenizer(dense: Model) -> Tokenizer:
    """The tiny llama's tokenizer."""
    return Tokenizer(dense.bundle)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep of a tiny model, which reads 256 tokens, measures for a moment."""
    from tamiz.evaluation import bench, windows

    cut = windows.cut
    monkeypatch.setattr(bench, "ROUNDS", 1)
    monkeypatch.setattr(bench, "TOKENS", 2)
    monkeypatch.setattr(bench, "PREFILL", 16)
    monkeypatch.setattr(bench, "PAUSE", 0.0)
    monkeypatch.setattr(windows, "cut", lambda ids, count, _: cut(ids, count, 100))
