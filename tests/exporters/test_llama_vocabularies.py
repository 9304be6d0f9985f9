"""Vocabularies of llama.cpp beside the ids that its own tests expect; `tox -e peers` runs this.

TAMIZ_PEERS names a folder that holds `*.gguf` with `*.gguf.inp` and `*.gguf.out` beside them at any
depth, those of llama.cpp's models for one; llama-cpp-python's source package has them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import tokenizers

from tamiz.files.errors import TamizError
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_tokenizer import GgufTokenizer

PEERS = os.environ.get("TAMIZ_PEERS")
EXPECTED = sorted(Path(PEERS).rglob("*.gguf.out")) if PEERS else []
BETWEEN = "\n__ggml_vocab_test__\n"
#: Kinds of tokenizers that no decoder of tamiz has.
OF_ENCODERS = ("bert", "t5")


@pytest.mark.skipif(not EXPECTED, reason="TAMIZ_PEERS names no folder with *.gguf.out files")
@pytest.mark.parametrize("path", EXPECTED, ids=lambda path: path.name.removesuffix(".gguf.out"))
def test_ids_are_those_that_llama_cpp_expects(path: Path) -> None:
    file = GgufFile(path.with_suffix(""))
    size = len(file.metadata["tokenizer.ggml.tokens"])
    if file.metadata["tokenizer.ggml.model"] in OF_ENCODERS:
        with pytest.raises(TamizError, match=r"tokenizer\.ggml\.model: found"):
            GgufTokenizer(file, size)
        return
    description = GgufTokenizer(file, size).tokenizer_json()
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(description))
    texts = path.with_suffix(".inp").read_bytes().decode("utf-8").split(BETWEEN)
    lines = path.read_text("utf-8").split("\n")
    rows = list(zip(texts, lines, strict=False))
    expected = [[int(number) for number in line.split()] for _, line in rows]
    found = [tokenizer.encode(text, add_special_tokens=False).ids for text, _ in rows]
    assert found == expected
