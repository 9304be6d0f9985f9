"""Fragments of the changelog have a kind and a text, and a release collects them."""

import datetime
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kit.rooms import ROOT
from kit.words import faults

FOLDER = ROOT / "changelog.d"


@pytest.fixture
def collect() -> ModuleType:
    spec = importlib.util.spec_from_file_location("collect", FOLDER / "collect.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_fragments_have_a_kind_and_plain_texts(collect: ModuleType) -> None:
    for paths in collect.fragments(FOLDER).values():
        for path in paths:
            text = path.read_text("utf-8")
            assert text.strip(), path.name
            assert faults(text) == [], path.name


def test_a_release_collects_them_by_kind(collect: ModuleType, tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "changelog.d"
    folder.mkdir()
    (folder / "README.md").write_text("no fragment\n")
    (folder / "b.fixed.md").write_text("No crash.\n")
    (folder / "a.added.md").write_text("A flag\nof two lines.\n")
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## 0.1.0 (2026-01-01)\n\n- First.\n")
    monkeypatch.setattr(collect, "HERE", folder)
    monkeypatch.setattr(sys, "argv", ["collect.py", "0.2.0"])
    collect.main()
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    assert changelog.read_text() == (
        f"# Changelog\n\n## 0.2.0 ({today})\n\n### Added\n\n- A flag\n  of two lines.\n\n"
        "### Fixed\n\n- No crash.\n\n## 0.1.0 (2026-01-01)\n\n- First.\n"
    )
    assert [path.name for path in folder.iterdir()] == ["README.md"]


def test_the_first_release_takes_what_was_added(collect: ModuleType, tmp_path: Path) -> None:
    for name in ("a.added.md", "b.fixed.md"):
        (tmp_path / name).write_text(f"{name}\n")
    text = "# Changelog\n\n## 0.1.0 (unreleased)\n\n### Added\n\n- First.\n"
    made = collect.with_section(
        text, "0.1.0", datetime.date(2026, 1, 2), collect.fragments(tmp_path)
    )
    assert made == text.replace("unreleased", "2026-01-02") + "- a.added.md\n"


def test_a_fragment_without_kind_is_refused(collect: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("?")
    with pytest.raises(ValueError, match=r"a\.md: kind is 'a'"):
        collect.fragments(tmp_path)
