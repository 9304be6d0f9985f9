"""`tamiz bench` of encoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kit.command_line import ok, refused
from kit.encoders import WORDS, write_classifier, write_transformer
from tamiz.evaluation import bench
from tamiz.files.bundle import Source, write_manifest
from tamiz.files.errors import TamizError


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ROUNDS", 2)
    monkeypatch.setattr(bench, "PAUSE", 0.0)
    monkeypatch.setattr(bench, "LOAD_SECONDS", 0.01)
    monkeypatch.setattr(bench, "read_bandwidth", lambda threads: 10.0 * threads)


def encoder(folder: Path, positions: int = 512) -> Path:
    write_transformer(folder, layers=1)
    config = {"max_position_embeddings": positions, "vocab_size": 50}
    (folder / "config.json").write_text(json.dumps(config))
    write_manifest(folder, "dense", Source("made"))
    return folder


def test_an_encoder_against_another(tmp_path: Path) -> None:
    told: list[str] = []
    ours, theirs = encoder(tmp_path / "one"), encoder(tmp_path / "two")
    report = bench.bench(ours, theirs, None, 1, told.append)
    runs = {f"{texts} x {length}" for texts in (1, 8) for length in (16, 128, 512)}
    assert set(report["embed_texts_s"]) == set(report["spread"]["embed_texts_s"]) == runs
    assert all(speed > 0 for speed in report["against"]["embed_texts_s"].values())
    assert set(report["ratio"]) == {"embed_texts_s"}
    assert set(report["ratio"]["embed_texts_s"]) == runs
    assert "decode_tok_s" not in report
    assert told == [f"{texts} x {length} tokens" for texts in (1, 8) for length in (16, 128, 512)]


def test_lengths_follow_the_positions_of_the_model(tmp_path: Path) -> None:
    folder = encoder(tmp_path / "encoder", positions=100)
    assert set(bench.bench(folder, None, None, 1)["embed_texts_s"]) == {"1 x 16", "8 x 16"}
    assert set(bench.bench(folder, None, (100,), 1)["embed_texts_s"]) == {"1 x 100", "8 x 100"}
    with pytest.raises(TamizError, match=r"a text has at most 100 tokens .* found --context 101"):
        bench.bench(folder, None, (16, 101), 1)
    short = encoder(tmp_path / "short", positions=10)
    assert set(bench.bench(short, None, None, 1)["embed_texts_s"]) == {"1 x 10", "8 x 10"}


def test_texts_per_second_of_a_classifier(tmp_path: Path) -> None:
    folder = write_classifier(tmp_path / "classifier", vocab_size=WORDS)
    found = bench.bench(folder, folder, (16,), 1)
    assert set(found["ratio"]["embed_texts_s"]) == {"1 x 16", "8 x 16"}


def test_an_encoder_and_a_decoder_are_not_compared(tmp_path: Path, tiny_dense: Path) -> None:
    folder = encoder(tmp_path / "encoder")
    with pytest.raises(TamizError, match=f"{tiny_dense}: is a decoder, expected an encoder as "):
        bench.bench(folder, tiny_dense, (16,), 1)


def test_the_command_prints_texts_per_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "TEXTS", 2)
    folder = encoder(tmp_path / "encoder")
    printed = ok("bench", folder, "--context", 16)
    assert "1 x 16 tokens, texts/s" in printed
    assert "2 x 16 tokens, texts/s" in printed
    found: dict[str, Any] = json.loads(ok("bench", folder, "--context", 16, "--json"))
    assert set(found["embed_texts_s"]) == {"1 x 16", "2 x 16"}
    for option, flag in (("--metrics", "--metrics"), ("--speculate=ngram", "--speculate")):
        message = refused("bench", folder, "--context", 16, option)
        assert message == f"{folder}: {flag} needs a decoder, found an encoder"
