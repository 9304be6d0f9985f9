"""Search and similarity of encoders: sections of a text, ranks, and a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.quality import retrieval
from benchmarks.quality.encoders import ONNX_RUNTIME_INT8
from kit.encoders import write_encoder


def article(title: str, first: int) -> str:
    lines = [f" = {title} = ", " introduction "]
    for section in range(3):
        words = " . ".join(
            " ".join(f"w{2 + (first + 5 * section + i) % 48}" for i in range(place, place + 9))
            for place in range(6)
        )
        lines += [f" = = s {section} = = ", f" {words} . "]
    return "\n".join(lines)


TEXT = "\n".join(article(f"article {n}", 7 * n) for n in range(4))


def test_sections_have_the_titles_above_them() -> None:
    sections = retrieval.read_sections(TEXT)
    assert len(sections) == 12
    assert (sections[4].article, sections[4].title) == ("article 1", "s 1")
    assert sections[4].body.startswith("w14 w15")


def test_pairs_are_as_near_as_their_kind_says() -> None:
    sections = retrieval.read_sections(TEXT)
    first, second, kinds = retrieval.sentence_pairs(sections, 5)
    assert kinds.tolist() == [0, 1, 2, 3] * 5
    assert all(a != b for a, b in zip(first, second, strict=True))
    for a, b, kind in zip(first, second, kinds, strict=True):
        shared = [s for s in sections if a in s.body and b in s.body]
        assert bool(shared) or kind < 2


@pytest.mark.parametrize(("x", "y", "expected"), [
    ([1.0, 2.0, 3.0], [5, 6, 9], 1.0),
    ([1.0, 2.0, 3.0], [3, 2, 1], -1.0),
    ([0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1], 0.894427),
])  # fmt: skip
def test_spearman(x: list[float], y: list[int], expected: float) -> None:
    """Values of scipy.stats.spearmanr."""
    assert retrieval.spearman(np.array(x), np.array(y)) == pytest.approx(expected, abs=1e-6)


def test_models_are_compared(tmp_path: Path) -> None:
    write_encoder(tmp_path / "a")
    (tmp_path / "text").write_text(TEXT)
    bundles = [str(tmp_path / "a")] * 2
    options = ["--text", tmp_path / "text", "--pairs", 5, "--length", 40]
    output = tmp_path / "out.json"
    arguments = [*bundles, *map(str, options), "--work", str(tmp_path / "w"), "--json", str(output)]
    done = CliRunner().invoke(retrieval.main, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    stored = json.loads(output.read_text())
    counts = {"queries": 12, "pairs": 20, "length": 40}
    assert stored["settings"] == {"model": "a", "text": "text", **counts}
    row = stored["results"]["a"]
    assert 0 <= row["ndcg_10"] <= 1
    assert row["ndcg_10_difference"] == row["spearman_difference"] == [0, 0]
    # The table of this model is no product, so the quantiser leaves it as it is.
    assert stored["results"][f"{ONNX_RUNTIME_INT8}, one scale an output"] == row


def test_openvino_needs_a_folder(tmp_path: Path) -> None:
    write_encoder(tmp_path / "a")
    (tmp_path / "text").write_text(TEXT)
    arguments = [str(tmp_path / "a"), "--text", str(tmp_path / "text"), "--openvino"]
    done = CliRunner().invoke(retrieval.main, arguments)
    assert done.exit_code == 2
    assert "--openvino needs --work" in done.output
