"""Models that are no bundle yet, from Python and by commands."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

import tamiz
from kit.command_line import ok, refused
from kit.encoders import write_encoder
from tamiz.building.of_source import as_bundle, bundle_of
from tamiz.files.bundle import Bundle
from tamiz.inference.embedding_model import EmbeddingModel
from tamiz.inference.language_model import LanguageModel


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that keeps the bundles of sources."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tamiz" / "served"


def test_a_gguf_is_built_once(
    tiny_gguf: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="tamiz")
    model = tamiz.load(tiny_gguf, threads=1)
    (built,) = cache.iterdir()
    assert caplog.messages == [f"exporting {tiny_gguf}", f"building {built}"]
    assert set(Bundle.open(built).manifest.techniques) == {"activation-bits"}
    assert isinstance(model, LanguageModel)
    expected = model.generate("hello", max_new_tokens=3).text
    again = ok("run", tiny_gguf, "hello", "--max-new-tokens=3", "--threads=1", "--json")
    assert json.loads(again)["text"] == expected
    assert list(cache.iterdir()) == [built]


def test_a_bundle_is_opened_as_it_is(dense_dir: Path, cache: Path) -> None:
    assert as_bundle(dense_dir, print) == dense_dir
    assert not cache.exists()
    assert Bundle.open(bundle_of(dense_dir, print)).manifest.kind == "built"


def test_texts_of_a_folder_have_the_embeddings_of_its_bundle(tmp_path: Path) -> None:
    dense = write_encoder(tmp_path / "dense")
    other = tmp_path / "onnx"
    other.mkdir()
    for file in dense.iterdir():
        if file.name != "tamiz.json":
            (other / file.name).write_bytes(file.read_bytes())
    (tmp_path / "texts").write_text("w3 w4\nw5\n", "utf-8")
    ok("embed", other, tmp_path / "texts", "--npy", tmp_path / "found.npy")
    expected = EmbeddingModel.load(dense).embed(["w3 w4", "w5"])
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), expected, rtol=0, atol=1e-6)


def test_a_source_is_inspected_without_a_bundle_of_it(
    tiny_gguf: Path, dense_dir: Path, tmp_path: Path, cache: Path
) -> None:
    """The text and the recorded inputs are those of the exported file, and nothing stays."""
    exported = tmp_path / "exported"
    ok("export", tiny_gguf, "-o", exported)
    assert ok("inspect", tiny_gguf) == ok("inspect", exported)
    assert json.loads(ok("inspect", tiny_gguf, "--json"))["bundle"] == str(tiny_gguf)
    assert ok("plan", tiny_gguf, "--recipe=small") == ok("plan", exported, "--recipe=small")
    (tmp_path / "text").write_text("hello world " * 200, "utf-8")
    read = (f"--text={tmp_path / 'text'}", "--windows=1", "--threads=1")
    for source, file in ((tiny_gguf, "a"), (exported, "b")):
        ok("calibrate", source, "-o", tmp_path / file, *read)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert list(cache.iterdir()) == []


def test_a_source_is_measured_as_it_is_served(tiny_gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello world " * 200, "utf-8")
    text = (f"--text={tmp_path / 'text'}", "--windows=1", "--window=64", "--json")
    found = ok("eval", tiny_gguf, "--against", tiny_gguf, *text)
    assert json.loads(found)["kl_mean"] == 0
    assert ok("eval", bundle_of(tiny_gguf, print), *text) == ok("eval", tiny_gguf, *text)


def test_a_report_is_that_of_a_bundle(tiny_gguf: Path) -> None:
    assert f"{tiny_gguf}: is a file, expected a tamiz bundle of" in refused("explain", tiny_gguf)


def test_what_nothing_reads_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no exporter reads it" in refused("run", tmp_path / "empty", "hello")
    reason = refused("bench", tmp_path / "none.gguf")
    assert "none.gguf: no such file or folder, expected a bundle, a GGUF file or" in reason
    assert not cache.exists() or list(cache.iterdir()) == []
