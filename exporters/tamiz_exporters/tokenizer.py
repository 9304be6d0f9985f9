r"""tokenizer.onnx: text to token ids with the operators of onnxruntime-extensions.

``text`` string [1] → ``ids`` int64 [T]. No special token is added; those in the text are
recognised. The operator ignores some of what tokenizer.json may ask for. Where the graph can make
up for it, it puts a separator, an added token that is dropped again, where the text must split:

- ``Digits``: around every ``\p{N}``;
- ``\s*[\r\n]+``: after the last newline of a run of white space, where the operator may go on.

NFC is left to the caller: no operator does it.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import onnx_ir as ir

_DOMAIN = "ai.onnx.contrib"
#: A Unicode noncharacter, which no text contains.
_SEPARATOR = "\ufdd0"
_DIGIT = (r"(\p{N})", rf"{_SEPARATOR}\1{_SEPARATOR}")
_NEWLINE = (r"([\p{Z}\t-\r\x{85}]*[\r\n])", rf"\1{_SEPARATOR}")
_NORMALIZERS = {"NFC", "Prepend", "Replace"}
_PRE_TOKENIZERS = {"ByteLevel", "Digits", "Split"}
_log = logging.getLogger(__name__)


def write_tokenizer(directory: Path) -> bool:
    """Writes ``tokenizer.onnx`` from ``tokenizer.json`` where the operators can do what it says.

    Args:
        directory: Holds ``tokenizer.json``; receives ``tokenizer.onnx``.

    Returns:
        Whether it was written; if not, a warning is logged that says why.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        _log.warning("tokenizer.onnx is not written: the source has no tokenizer.json")
        return False
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    if reason := _unsupported(tokenizer):
        _log.warning("tokenizer.onnx is not written: %s", reason)
        return False
    ir.save(_build(tokenizer), directory / "tokenizer.onnx")
    return True


def _unsupported(tokenizer: dict[str, Any]) -> str:
    """Returns what onnxruntime-extensions would do differently, or nothing."""
    if (kind := tokenizer["model"].get("type")) != "BPE":
        return f"the tokenizer's model is {kind}, expected BPE"
    normalizers, splitters = (_steps(tokenizer, key) for key in ("normalizer", "pre_tokenizer"))
    for steps, known in ((normalizers, _NORMALIZERS), (splitters, _PRE_TOKENIZERS)):
        if unknown := [step["type"] for step in steps if step["type"] not in known]:
            return f"the tokenizer has a step {unknown[0]}, expected only {', '.join(known)}"
    splits = [step for step in splitters if step["type"] == "Split"]
    if len(splits) > 1 or any("Regex" not in step["pattern"] for step in splits):
        return "the tokenizer splits in several steps, expected one regular expression"
    if not splitters and all(step["type"] != "Prepend" for step in normalizers):
        return "the tokenizer puts no space before the text, the operator always does"
    return ""


def _steps(tokenizer: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Returns the steps of the normalizer or pre-tokenizer, a sequence or one."""
    node = tokenizer.get(key)
    if node is None:
        return []
    steps: list[dict[str, Any]] = node.get("pretokenizers", node.get("normalizers", [node]))
    return steps


def _separations(tokenizer: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the (pattern, replacement) pairs that put separators into the text."""
    steps = _steps(tokenizer, "pre_tokenizer")
    out = [_DIGIT for step in steps if step["type"] == "Digits" and step["individual_digits"]]
    out += [
        _NEWLINE
        for step in steps
        if step["type"] == "Split" and r"|\s*[\r\n]+|" in step["pattern"]["Regex"]
    ]
    return out


def _build(tokenizer: dict[str, Any]) -> ir.Model:
    text = ir.Value(name="text", type=ir.TensorType(ir.DataType.STRING), shape=ir.Shape([1]))
    ids = ir.Value(name="ids", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(["T"]))
    graph = ir.Graph([text], [ids], nodes=[], opset_imports={"": 18, _DOMAIN: 1}, name="tokenizer")
    tape = ir.tape.Tape(graph)
    for number, (pattern, rewrite) in enumerate(_separations(tokenizer)):
        texts = (text, _constant(tape, f"pattern_{number}", [pattern]))
        rewritten = _constant(tape, f"rewrite_{number}", [rewrite])
        text = tape.op("StringRegexReplace", [*texts, rewritten], domain=_DOMAIN)
    added = tokenizer["added_tokens"]
    separator = 1 + max([*tokenizer["model"]["vocab"].values(), *(token["id"] for token in added)])
    added = [*added, {"id": separator, "content": _SEPARATOR, "special": True}]
    # The class tells the operator the family; as LlamaTokenizer it would split digits.
    byte_level = bool(_steps(tokenizer, "pre_tokenizer"))
    family = "PreTrainedTokenizerFast" if byte_level else "GemmaTokenizer"
    settings = {"tokenizer_class": family, "add_bos_token": False}
    plain = tokenizer | {"added_tokens": added, "post_processor": None}
    attributes = {
        "tokenizer_vocab": json.dumps(plain, ensure_ascii=False, separators=(",", ":")),
        "tokenizer_config": json.dumps(settings),
    }
    batch = tape.op("HfJsonTokenizer", [text], attributes, domain=_DOMAIN)
    flat = tape.op("Reshape", [batch, _constant(tape, "shape", [-1])])
    dropped = tape.op("Equal", [flat, _constant(tape, "separator", separator)])
    tape.op("Compress", [flat, tape.op("Not", [dropped])], {"axis": 0}, output=ids)
    return ir.Model(graph, ir_version=8, producer_name="tamiz")


def _constant(tape: ir.tape.Tape, name: str, value: Any) -> ir.Value:
    return tape.initializer(ir.tensor(value), name)
