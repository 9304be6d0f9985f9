"""``tamiz bench --sweep`` where it fails: early, and without a trace."""

import os
from pathlib import Path

import pytest

from kit.command_line import tamiz
from tamiz.building import sweep
from tamiz.evaluation import windows
from tamiz.evaluation.windows import cut
from tamiz.files.errors import TamizError

TEXT = "a sieve lets the small things through and keeps the large ones " * 200


def bench(dense: Path, values: str, text: str) -> str:
    """Why a sweep that must be refused is."""
    file = dense.parent / "text.txt"
    file.write_text(text, "utf-8")
    wanted = f"block-quant.bits={values}"
    out = dense.parent / "sweep"
    result = tamiz("bench", dense, "--sweep", wanted, "--context", 8, "--text", file, "-o", out)
    assert result.exit_code == 2, result.output
    return result.stderr


def test_the_text_is_checked_before_the_first_build(
    tiny_dense: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "build", lambda *_: pytest.fail("builds"))
    assert "text.txt: the text has " in bench(tiny_dense, "8,4", "short")
    assert sorted(os.listdir(tiny_dense.parent)) == ["text.txt", tiny_dense.name]


def test_a_sweep_that_fails_leaves_nothing(
    tiny_dense: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **_options: object) -> None:
        raise TamizError("no luck")

    # the tiny model reads 256 tokens
    monkeypatch.setattr(windows, "cut", lambda ids, count, _: cut(ids, count, 100))
    monkeypatch.setattr(sweep, "check_context", lambda *_: None)
    monkeypatch.setattr(sweep, "evaluate", fail)
    for _ in range(2):  # the first is not in the way of the second
        assert "no luck" in bench(tiny_dense, "8,8", TEXT)
        assert sorted(os.listdir(tiny_dense.parent)) == ["text.txt", tiny_dense.name]
