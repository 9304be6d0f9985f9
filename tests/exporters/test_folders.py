"""Folders that lack files which other exporters write, or have them elsewhere."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import tokenizers

from kit import odd_vocabulary, tiny_gguf, tiny_safetensors
from kit.odd_strings import ODD_STRINGS
from kit.tiny_gguf import byte_level_tokens
from tamiz.files.errors import TamizError
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz.runtime.text.tokenizer import Tokenizer
from tamiz.survey.export import export
from tamiz_exporters import onnx, safetensors

SPECIAL = tiny_gguf.SPECIAL


def tokenizer_json() -> dict[str, Any]:
    tokens = byte_level_tokens()
    added = [{"id": n, "content": name, "special": True} for n, name in enumerate(SPECIAL)]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    begin = {"SpecialToken": {"id": SPECIAL[1], "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "version": "1.0",
        "added_tokens": [token | flags for token in added],
        "normalizer": None,
        "pre_tokenizer": level | {"use_regex": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, text],
            "pair": [begin, text],
            "special_tokens": {SPECIAL[1]: {"id": SPECIAL[1], "ids": [1], "tokens": [SPECIAL[1]]}},
        },
        "decoder": level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": list(tiny_gguf.MERGES),
        },
    }


def folder(path: Path, **changes: Any) -> Path:
    tiny_safetensors.write(path, tiny_gguf.random_model(), bos_token_id=1, **changes)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    return path


def test_tokenizer_json_alone(tmp_path: Path, plugins: Plugins) -> None:
    source = folder(tmp_path / "hf")
    (source / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    bundle = export(str(source), tmp_path / "dense", plugins)
    settings = json.loads((bundle.path / "tokenizer_config.json").read_text())
    assert settings["bos_token"] == SPECIAL[1]
    assert settings["eos_token"] == SPECIAL[2]
    assert settings["add_bos_token"] is True
    assert settings["chat_template"] == "{{ messages[0]['content'] }}"
    tokenizer = Tokenizer(bundle)
    assert tokenizer.encode("hello")[0] == 1
    assert tokenizer.decode(tokenizer.encode("hello world", bos=False)) == "hello world"
    assert Model.load(bundle.path, threads=1).stop_ids == {0, 2}


def test_chat_template_jinja_comes_before_tokenizer_config_json(
    tmp_path: Path, plugins: Plugins
) -> None:
    source = folder(tmp_path / "hf")
    (source / "tokenizer_config.json").write_text('{"chat_template": "old"}')
    (source / "chat_template.jinja").write_text("new")
    bundle = export(str(source), tmp_path / "dense", plugins)
    assert json.loads((bundle.path / "tokenizer_config.json").read_text())["chat_template"] == "new"


def merges_only(path: Path, kind: str) -> None:
    """``vocab.json`` and ``merges.txt`` of the odd vocabulary."""
    path.mkdir()
    merges = json.loads(odd_vocabulary.MERGES.read_text("utf-8"))
    letters = [token for token in byte_level_tokens() if len(token) == 1]
    tokens = [*letters, *("".join(merge) for merge in merges), "<|endoftext|>", "<|im_end|>"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    (path / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), "utf-8")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    (path / "merges.txt").write_text("\n".join(lines) + "\n", "utf-8")
    (path / "config.json").write_text(json.dumps({"model_type": kind}))
    settings = {"eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"}
    (path / "special_tokens_map.json").write_text(json.dumps(settings))


#: Of `ODD_STRINGS`, the texts that have other ids than transformers 5.24 gives
#: (``AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False)``).
@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_vocabulary_and_merges_alone(tmp_path: Path, kind: str) -> None:
    from tamiz_exporters.companions import copy_companions

    merges_only(tmp_path / "hf", kind)
    (tmp_path / "bundle").mkdir()
    copy_companions(tmp_path / "hf", tmp_path / "bundle")
    made = tokenizers.Tokenizer.from_file(str(tmp_path / "bundle" / "tokenizer.json"))
    values = json.loads((Path(__file__).parent / "token_ids" / "merges_only.json").read_text())
    found = [made.encode(text, add_special_tokens=False).ids for text in ODD_STRINGS]
    digests = [odd_vocabulary.digest(ids) for ids in found]
    different = [
        text
        for text, digest, expected in zip(ODD_STRINGS, digests, values[kind].split(), strict=True)
        if digest != expected
    ]
    assert different == []
    settings = json.loads((tmp_path / "bundle" / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == "<|im_end|>"


WORDS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able", "hello", "wor"),
    *("##ld", "!", "中", "cafe", "caf", "##é", "Hello", ",", "a", "##b"),
)
#: Ids of transformers 5.24: ``AutoTokenizer.from_pretrained(folder)(text)["input_ids"]``, with
#: ``do_lower_case`` and without.
WORD_IDS: dict[str, tuple[list[int], list[int]]] = {
    "Hello, unaffable world!": (
        [2, 8, 17, 5, 6, 7, 9, 10, 11, 3],
        [2, 16, 17, 5, 6, 7, 9, 10, 11, 3],
    ),
    "café 中国": ([2, 13, 12, 1, 3], [2, 14, 15, 12, 1, 3]),
    "ab [MASK] a\u200b": ([2, 18, 19, 4, 18, 3], [2, 18, 19, 4, 18, 3]),
    "x" * 101: ([2, 1, 3], [2, 1, 3]),
    "CAFÉ": ([2, 13, 3], [2, 1, 3]),
}


@pytest.mark.parametrize("lower", [True, False])
def test_word_pieces_alone(tmp_path: Path, lower: bool) -> None:
    """`vocab.txt` of BERT."""
    from tamiz_exporters.companions import copy_companions

    (tmp_path / "bundle").mkdir()
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", "utf-8")
    settings = {"tokenizer_class": "BertTokenizer", **({} if lower else {"do_lower_case": False})}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    copy_companions(tmp_path, tmp_path / "bundle")
    made = tokenizers.Tokenizer.from_file(str(tmp_path / "bundle" / "tokenizer.json"))
    found = {text: made.encode(text).ids for text in WORD_IDS}
    assert found == {text: ids[0 if lower else 1] for text, ids in WORD_IDS.items()}


def test_word_pieces_without_a_special_token_are_refused(tmp_path: Path) -> None:
    from tamiz_exporters.companions import copy_companions

    (tmp_path / "bundle").mkdir()
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(TamizError, match=r"vocab\.txt: found no token '\[PAD\]', expected this"):
        copy_companions(tmp_path, tmp_path / "bundle")


@pytest.mark.parametrize(("name", "kind"), [("vocab.txt", "roberta"), ("tokenizer.model", "llama")])
def test_a_tokenizer_that_is_not_read_is_a_warning_with_a_way_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, kind: str
) -> None:
    from tamiz_exporters.companions import copy_companions

    (tmp_path / "bundle").mkdir()
    (tmp_path / name).write_bytes(b"a")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    copy_companions(tmp_path, tmp_path / "bundle")
    assert f"tokenizer.json is missing and cannot be made from {name}" in caplog.text
    assert "try AutoTokenizer.from_pretrained(...).save_pretrained(...)" in caplog.text


def test_other_merges_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tamiz_exporters.companions import copy_companions

    merges_only(tmp_path / "hf", "roberta")
    (tmp_path / "bundle").mkdir()
    copy_companions(tmp_path / "hf", tmp_path / "bundle")
    assert "cannot be made from vocab.json and merges.txt" in caplog.text
    assert not (tmp_path / "bundle" / "tokenizer.json").exists()


def test_malformed_merges_are_refused(tmp_path: Path) -> None:
    from tamiz_exporters.companions import copy_companions

    merges_only(tmp_path / "hf", "gpt2")
    (tmp_path / "hf" / "merges.txt").write_text("a b c\n")
    (tmp_path / "bundle").mkdir()
    with pytest.raises(TamizError, match=r"merges\.txt: found the line 'a b c', expected two"):
        copy_companions(tmp_path / "hf", tmp_path / "bundle")


@pytest.mark.parametrize("named", ["folder", "file"])
def test_companions_lie_above_the_folder_onnx(tmp_path: Path, plugins: Plugins, named: str) -> None:
    dense = export(str(folder(tmp_path / "hf")), tmp_path / "dense", plugins, "float32").path
    above = tmp_path / "F"
    shutil.copytree(dense, above / "onnx")
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        shutil.move(above / "onnx" / name, above / name)
    for name in ("tokenizer_config.json", "tokenizer.onnx", "manifest.json"):
        (above / "onnx" / name).unlink(missing_ok=True)
    source = above if named == "folder" else above / "onnx" / "model.onnx"
    assert onnx.accepts(str(source))
    bundle = export(str(source), tmp_path / "again", plugins)
    assert Tokenizer(bundle).encode("hello")[0] == 1
    assert Model.load(bundle.path, threads=1).stop_ids == {0, 2}


def test_weights_without_their_prefix(tmp_path: Path, plugins: Plugins) -> None:
    model = tiny_gguf.random_model()
    first = tiny_safetensors.write(tmp_path / "full", model)
    second = tiny_safetensors.write(tmp_path / "bare", model)
    bare = {name.removeprefix("model."): v for name, v in tiny_safetensors.tensors(model).items()}
    tiny_safetensors.write_file(second / "model.safetensors", bare)
    found = [export(str(s), tmp_path / f"{s.name}.dense", plugins).path for s in (first, second)]
    models = [ir.load(path / "model.onnx") for path in found]
    initializers = [
        {name: value.const_value.tobytes() for name, value in each.graph.initializers.items()}
        for each in models
    ]
    assert initializers[0] == initializers[1]


def test_architectures_may_be_null(tmp_path: Path) -> None:
    source = tiny_safetensors.write(tmp_path / "hf", tiny_gguf.random_model(), architectures=None)
    assert safetensors.accepts(str(source))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("added_tokens.json", '{"x": []}'),
        ("added_tokens.json", '{"x": "y"}'),
        ("tokenizer_config.json", '{"tokenizer_class": [1]}'),
        ("vocab.json", "[]"),
    ],
)
def test_files_of_another_form_cost_one_sentence(tmp_path: Path, name: str, content: str) -> None:
    from tamiz_exporters.companions import copy_companions

    merges_only(tmp_path / "hf", "gpt2")
    (tmp_path / "hf" / name).write_text(content)
    (tmp_path / "bundle").mkdir()
    with pytest.raises(TamizError, match=re.escape(str(tmp_path / "hf"))):
        copy_companions(tmp_path / "hf", tmp_path / "bundle")
