"""Token ids of odd strings equal those that llama.cpp gives for the same GGUF.

``token_ids/*.json`` holds ``[text, ids]``, from llama-cpp-python 0.3.36 (special tokens parsed, no
BOS). The models are looked for in ``TAMIZ_MODELS``, ``~/.cache/tamiz-models`` by default.
"""

from __future__ import annotations

import json
import os
import unicodedata
from pathlib import Path

import pytest
import tokenizers

from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_model import GgufModel
from tamiz_exporters.gguf_tokenizer import GgufTokenizer

MODELS = Path(os.environ.get("TAMIZ_MODELS", Path.home() / ".cache" / "tamiz-models"))
EXPECTED = Path(__file__).parent / "token_ids"
FILES = {
    "gemma3": "gemma-3-270m-q4_k_m.gguf",
    "qwen2": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
}


@pytest.mark.parametrize("name", FILES)
def test_token_ids_equal_those_of_llama_cpp(name) -> None:
    path = MODELS / FILES[name]
    if not path.is_file():
        pytest.skip(f"needs {path}")
    file = GgufFile(path)
    description = GgufTokenizer(file, GgufModel(file).vocabulary).tokenizer_json()
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(description))
    rows = json.loads((EXPECTED / f"{name}.json").read_text("utf-8"))
    assert len(rows) == 400
    if name == "qwen2":  # whose tokenizer composes characters, which llama.cpp leaves out
        rows = [row for row in rows if unicodedata.is_normalized("NFC", row[0])]
        assert len(rows) > 380
    found = [[text, tokenizer.encode(text, add_special_tokens=False).ids] for text, _ in rows]
    assert found == rows
