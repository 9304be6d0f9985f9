"""Encoders of the Hugging Face library: exported as torch computes them, built within a limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from kit.command_line import ok
from kit.encoder_files import CASE
from kit.encoders import write_text, write_tokenizer
from kit.hf_encoders import KINDS, network_of
from tamiz.files.bundle import Bundle
from tamiz.plugins import Plugins
from tamiz.reporting.reader import bundle_report
from tamiz.survey.export import export

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamiz[export]'")
pytest.importorskip("optimum.onnxruntime", reason="needs optimum: pip install 'tamiz[export]'")

#: How the safetensors of a folder are read: by tamiz itself, or by optimum where a task is given.
EXPORTERS: dict[str, str | None] = {"tamiz": None, "optimum": "feature-extraction"}


def expected(network: Any) -> np.ndarray:
    """What torch computes for `CASE`."""
    ids, mask, types = map(torch.tensor, CASE)
    more = {"token_type_ids": types} if getattr(network.config, "type_vocab_size", 0) > 1 else {}
    with torch.no_grad():
        found: np.ndarray = network(ids, attention_mask=mask, **more)[0].numpy()
    return found


def run(bundle: Bundle) -> np.ndarray:
    session = ort.InferenceSession(bundle.model, providers=["CPUExecutionProvider"])
    given = dict(zip(("input_ids", "attention_mask", "token_type_ids"), CASE, strict=True))
    found: np.ndarray = session.run(None, {i.name: given[i.name] for i in session.get_inputs()})[0]
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification"])
def test_an_encoder_is_what_torch_computes(
    kind: str, head: str, tmp_path: Path, plugins: Plugins
) -> None:
    network = network_of(kind, tmp_path / "hf", head)
    write_tokenizer(tmp_path / "hf")
    found = run(export(str(tmp_path / "hf"), tmp_path / "dense", plugins))
    wanted = expected(network)
    if head == "Model":
        wanted, found = wanted[CASE[1] == 1], found[CASE[1] == 1]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_an_encoder_is_built_within_a_limit(exporter: str, kind: str, tmp_path: Path) -> None:
    network_of(kind, tmp_path / "hf")
    write_tokenizer(tmp_path / "hf")
    task = EXPORTERS[exporter]
    options = [] if task is None else ["--task", task]
    ok("export", tmp_path / "hf", "-o", tmp_path / "dense", *options)
    text = write_text(tmp_path / "text.txt", 4000)
    calibration = tmp_path / "calibration.safetensors"
    ok("calibrate", tmp_path / "dense", "-o", calibration, "--text", text)
    limits = ["--calibration", calibration, "--min-cosine", 0.999]
    ok("build", tmp_path / "dense", "-o", tmp_path / "built", *limits)
    report = bundle_report(Bundle.open(tmp_path / "built"))
    assert report.totals.replaced == report.totals.sites > 8
    assert report.totals.bytes_after < 0.4 * report.totals.bytes_before
    compared = ["--against", tmp_path / "dense", "--text", text, "--windows", 16, "--json"]
    quality = json.loads(ok("eval", tmp_path / "built", *compared))
    assert quality["cos_mean"] > 0.998
