"""A repository whose pages of results are made anew."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from kit.rooms import ROOT
from kit.stored_results import README


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "site"))
    return importlib.import_module("results")


@pytest.fixture
def repository(results: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a README and no results."""
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "RESULTS", tmp_path / "benchmarks" / "results")
    results.RESULTS.mkdir(parents=True)
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "README.md").write_text(README.format(*results.MARKERS))
    return tmp_path
