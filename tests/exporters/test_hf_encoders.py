"""Encoders of the Hugging Face library: exported as torch computes them, built within a limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from kit.command_line import ok
from kit.encoders import WORDS, write_text, write_tokenizer
from tamiz.files.bundle import Bundle
from tamiz.reporting.reader import bundle_report

#: Fields of a small encoder, as most configurations name them.
SHAPE = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 160,
    "pad_token_id": 1,
}
#: Name of the configuration's class, and what it takes besides.
KINDS: dict[str, dict[str, Any]] = {
    "Albert": {"embedding_size": 32},
    "Bert": {},
    "DebertaV2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 32,
    },
    "DistilBert": {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128},
    "Electra": {"embedding_size": 64},
    "MPNet": {},
    "ModernBert": {
        "reference_compile": False,
        "attn_implementation": "eager",
        **dict.fromkeys(("bos_token_id", "cls_token_id"), 0),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), 1),
    },
    "Roberta": {},
    "XLMRoberta": {},
}


@pytest.fixture(scope="module")
def libraries() -> tuple[Any, Any]:
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamiz[export]'")
    pytest.importorskip("optimum.onnxruntime", reason="needs optimum: pip install 'tamiz[export]'")
    import transformers

    return torch, transformers


def network_of(libraries: tuple[Any, Any], kind: str, folder: Path) -> Any:
    """A small random model of a kind, saved with a tokenizer."""
    torch, transformers = libraries
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SHAPE, **KINDS[kind]})
    network = getattr(transformers, f"{kind}Model")(config).eval()
    network.save_pretrained(folder)
    write_tokenizer(folder)
    return network


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_of_each_kind(libraries: tuple[Any, Any], kind: str, tmp_path: Path) -> None:
    network = network_of(libraries, kind, tmp_path / "hf")
    ok("export", tmp_path / "hf", "-o", tmp_path / "dense", "--task", "feature-extraction")
    ids = np.random.default_rng(0).integers(2, WORDS, (2, 9))
    session = ort.InferenceSession(tmp_path / "dense" / "model.onnx")
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": 0 * ids}
    given = {node.name: feeds[node.name] for node in session.get_inputs()}
    found = session.run(["last_hidden_state"], given)[0]
    with libraries[0].no_grad():
        expected = network(libraries[0].tensor(ids)).last_hidden_state.numpy()
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    text = write_text(tmp_path / "text.txt", 4000)
    calibration = tmp_path / "calibration.safetensors"
    ok("calibrate", tmp_path / "dense", "-o", calibration, "--text", text)
    limits = ["--calibration", calibration, "--min-cosine", 0.999]
    ok("build", tmp_path / "dense", "-o", tmp_path / "built", *limits)
    report = bundle_report(Bundle.open(tmp_path / "built"))
    assert report.totals.replaced == report.totals.sites > 8
    assert report.totals.bytes_after < 0.3 * report.totals.bytes_before
    compared = ["--against", tmp_path / "dense", "--text", text, "--windows", 16, "--json"]
    quality = json.loads(ok("eval", tmp_path / "built", *compared))
    assert quality["cos_mean"] > 0.998
