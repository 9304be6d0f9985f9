"""The ends of a generation: what config.json, generation_config.json and the tokenizer say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tamiz.files.errors import TamizError
from tamiz_exporters.companions import copy_companions

TOKENIZER = {
    "added_tokens": [{"id": 7, "content": "<|im_end|>", "special": True}],
    "normalizer": None,
    "pre_tokenizer": None,
    "model": {"type": "WordPiece", "vocab": {"a": 0, "</s>": 2}},
}


def ends(tmp_path: Path, **files: Any) -> Any:
    source, target = tmp_path / "source", tmp_path / "bundle"
    for folder in (source, target):
        folder.mkdir()
    for name, content in ({"tokenizer": TOKENIZER} | files).items():
        (source / f"{name}.json").write_text(json.dumps(content))
    copy_companions(source, target)
    return json.loads((target / "generation_config.json").read_text())


CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "in config.json only": (
        {"generation_config": {"do_sample": True}, "config": {"eos_token_id": 7}},
        {"do_sample": True, "eos_token_id": 7},
    ),
    "in tokenizer_config.json only": (
        {"generation_config": {}, "config": {}, "tokenizer_config": {"eos_token": "<|im_end|>"}},
        {"eos_token_id": 7},
    ),
    "as an object": (
        {"config": {}, "tokenizer_config": {"eos_token": {"content": "</s>"}}},
        {"eos_token_id": 2},
    ),
    "another one in each": (
        {
            "generation_config": {"eos_token_id": 0},
            "config": {"eos_token_id": [0, 2]},
            "tokenizer_config": {"eos_token": "<|im_end|>"},
        },
        {"eos_token_id": [0, 2, 7]},
    ),
    "without generation_config.json": (
        {"config": {"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": None}},
        {"bos_token_id": 1, "eos_token_id": 2},
    ),
    "of the text model": (
        {"config": {"text_config": {"eos_token_id": [1, 106]}}},
        {"eos_token_id": [1, 106]},
    ),
    "unknown to the tokenizer": (
        {"config": {"eos_token_id": 2}, "tokenizer_config": {"eos_token": "<end>"}},
        {"eos_token_id": 2},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_all_ends_count(tmp_path, name) -> None:
    files, expected = CASES[name]
    assert ends(tmp_path, **files) == expected


def test_a_complete_file_keeps_its_bytes(tmp_path) -> None:
    text = '{ "eos_token_id": [2, 7] }\n'
    source, target = tmp_path / "source", tmp_path / "bundle"
    for folder in (source, target):
        folder.mkdir()
    (source / "generation_config.json").write_text(text)
    (source / "config.json").write_text('{"eos_token_id": 7}')
    copy_companions(source, target)
    assert (target / "generation_config.json").read_text() == text


@pytest.mark.parametrize("value", ["</s>", [2, "a"], True, 2.5, -1])
def test_an_end_that_is_no_id_is_refused(tmp_path, value) -> None:
    with pytest.raises(TamizError, match=r"config\.json: eos_token_id: found .*, expected token i"):
        ends(tmp_path, config={"eos_token_id": value})
