from __future__ import annotations

import pytest

from tamiz_exporters.plugin import tamiz_exporters


@pytest.mark.parametrize(
    ("source", "files", "name"),
    [
        ("smollm2", [], "gguf"),
        ("somewhere/model.gguf", [], "gguf"),
        ("somewhere/model.onnx", [], "onnx"),
        ("org/model", [], "huggingface"),
        ("local", ["config.json"], "huggingface"),
        ("local", ["config.json", "model.onnx"], "onnx"),
        ("local", ["config.json", "model.safetensors"], "safetensors"),
        ("local", ["readme.md"], None),
        ("typo", [], None),
    ],
)
def test_the_first_exporter_that_accepts(tmp_path, monkeypatch, source, files, name) -> None:
    monkeypatch.chdir(tmp_path)
    for file in files:
        (tmp_path / source).mkdir(exist_ok=True)
        (tmp_path / source / file).touch()
    assert next((e.name for e in tamiz_exporters() if e.accepts(source)), None) == name
