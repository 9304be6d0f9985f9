"""`tamiz embed` and `tamiz rerank`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from kit.command_line import ok, refused, tamiz
from kit.encoders import WIDTH, write_classifier, write_encoder, write_transformer
from tamiz.files.bundle import Bundle
from tamiz.inference.cross_encoder import CrossEncoder
from tamiz.inference.embedding_model import EmbeddingModel
from tamiz.reporting.reader import bundle_report

TEXTS = ["w3 w4 w5", "w6", "w7 w8 w9 w10"]


def lines(folder: Path) -> Path:
    path = folder / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


def test_embeddings_as_json_and_as_numpy(tmp_path: Path) -> None:
    folder, texts = write_encoder(tmp_path / "e"), lines(tmp_path)
    found = json.loads(ok("embed", folder, texts, "--json"))
    expected = EmbeddingModel.load(folder).embed(TEXTS)
    np.testing.assert_allclose(found["embeddings"], expected, rtol=1e-6)
    assert (found["texts"], found["tokens"]) == (3, 3 * 2 + 8)
    text = ok("embed", folder, texts, "--npy", tmp_path / "out.npy", "--truncate-dim", 3)
    assert "3 embeddings of 3 numbers\n" in text
    assert " texts/s, " in text
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected[:, :3])
    unit = json.loads(tamiz("embed", folder, "-", "--json", "--normalize", stdin="w3\nw4").stdout)
    np.testing.assert_allclose(np.linalg.norm(unit["embeddings"], axis=1), 1, rtol=1e-6)
    assert np.shape(unit["embeddings"]) == (2, WIDTH)


def test_what_embed_refuses(tmp_path: Path) -> None:
    folder, texts = write_encoder(tmp_path / "e"), lines(tmp_path)
    assert "expected one of both" in refused("embed", folder, texts)
    assert "which the command uses" in refused("embed", folder, texts, "--npy", texts)
    (tmp_path / "empty").touch()
    assert "is empty, expected one text a line" in refused(
        "embed", folder, tmp_path / "empty", "--json"
    )
    assert "has no prompt 'q'" in refused("embed", folder, texts, "--json", "--prompt-name=q")


def test_texts_in_the_order_of_their_scores(tmp_path: Path) -> None:
    folder, texts = write_classifier(tmp_path / "c"), lines(tmp_path)
    scores = CrossEncoder.load(folder).rerank("w3", TEXTS)
    order = np.argsort(-scores).tolist()
    found = json.loads(ok("rerank", folder, "w3", texts, "--json"))
    assert [result["index"] for result in found["results"]] == order
    shown = tamiz("rerank", folder, "w3", texts, "--top", 2).stdout.splitlines()
    assert shown == [f"{scores[line]:.4f}  {TEXTS[line]}" for line in order[:2]]
    other = write_encoder(tmp_path / "e")
    assert "has no head that classifies" in refused("rerank", other, "w3", texts)


def test_inspect_speaks_of_texts(tmp_path: Path) -> None:
    encoder = write_encoder(tmp_path / "e")
    found = ok("inspect", encoder)
    assert f"encoder: embeddings of {WIDTH} numbers (pooling mean); texts of at most 512" in found
    assert "classifier: 2 labels; texts of at most 512 tokens" in ok(
        "inspect", write_classifier(tmp_path / "c", 2)
    )


def test_what_a_build_recognises_is_not_called_unchanged(tmp_path: Path) -> None:
    dense, built = write_transformer(tmp_path / "dense"), tmp_path / "built"
    found = json.loads(ok("inspect", dense, "--json"))
    assert found["recognised"]["TextAttention"] > 0
    ok("build", dense, "-o", built, "--min-cosine=off")
    names = {note["pass_name"] for note in found["notes"]}
    names |= {note.pass_name for note in bundle_report(Bundle.open(built)).notes}
    # A search for the attention of decoders, which comes first, refused their nodes.
    assert not names & {"attention", "swiglu", "sites"}


def test_a_build_without_a_calibration_has_8_bits(tmp_path: Path) -> None:
    ok("build", write_transformer(tmp_path / "dense"), "-o", tmp_path / "built")
    report = bundle_report(Bundle.open(tmp_path / "built"))
    applied = [fit for site in report.sites.values() for fit in site.techniques]
    assert {fit.name for fit in applied} == {"activation-bits", "block-quant"}
    texts = ["w3 w4 w5", "w20 w21"]
    built, dense = (
        EmbeddingModel.load(tmp_path / name).embed(texts, normalize=True)
        for name in ("built", "dense")
    )
    assert (built * dense).sum(axis=1).min() > 0.9995
