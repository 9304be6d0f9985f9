r"""tokenizer.onnx: text to token ids with the operators of onnxruntime-extensions.

``text`` string [1] → ``ids`` int64 [T]. No special token is added; those in the text are
recognised. The operator ignores some of what tokenizer.json may ask for. Where the graph can make
up for it, it puts a separator, an added token that is dropped again, where the text must split:

- ``Digits``: around every ``\p{N}``;
- ``\s*[\r\n]+``: after the last newline of a run of white space, where the operator may go on;
- the end of the text, twice.

As in `tokenizers`, a byte without a token is dropped. NFC is left to the caller: no operator does
it.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import onnx_ir as ir

from tamiz.api import TamizError, read_json

_DOMAIN = "ai.onnx.contrib"
#: A Unicode noncharacter, which no text contains.
_SEPARATOR = "\ufdd0"
_DIGIT = (r"(\p{N})", rf"{_SEPARATOR}\1{_SEPARATOR}")
_NEWLINE = (r"([\p{Z}\t-\r\x{85}]*[\r\n])", rf"\1{_SEPARATOR}")
#: The operator loses what follows the beginning of an added token (`a <b`) at the end of a text,
#: unless at least two characters come after it.
_END = (r"\z", _SEPARATOR * 2)
#: Ids that no token has are filled up to this many, since the operator writes beyond its table.
_MOST_HOLES = 1 << 16
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2_SPLIT = rf"{_WORDS}|\p{{N}}|{_OTHERS}"
LLAMA3_SPLIT = rf"{_WORDS}|\p{{N}}{{1,3}}|{_OTHERS}"
#: What transformers' class for such files would otherwise assume: token types, which no decoder
#: takes.
TOKENIZER_DEFAULTS = {"model_input_names": ["input_ids", "attention_mask"]}
#: Version of transformers whose names the configurations use.
TRANSFORMERS = "4.50.0"
_BYTE_LEVEL = {
    ("byte level with GPT-2's split",),
    ("single digits", "byte level with GPT-2's split"),
    ("split of qwen2 or llama 3", "byte level"),
}
_SENTENCEPIECE = ("Prepend", "Replace")
_log = logging.getLogger(__name__)


def write_tokenizer(directory: Path) -> bool:
    """Writes ``tokenizer.onnx`` from ``tokenizer.json`` where the operators can do what it says.

    Args:
        directory: Holds ``tokenizer.json``; receives ``tokenizer.onnx``.

    Returns:
        Whether it was written; if not, a warning or a note is logged that says why.

    Raises:
        TamizError: If ``tokenizer.json`` is malformed.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        _log.warning("tokenizer.onnx is not written: the source has no tokenizer.json")
        return False
    tokenizer = read_json(path)
    try:
        if reason := _unsupported(tokenizer):
            _log.info("tokenizer.onnx is not written: %s", reason)
            return False
        model = _build(tokenizer)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise malformed(path, error) from error
    ir.save(model, directory / "tokenizer.onnx")
    return True


def malformed(path: Path, error: Exception) -> TamizError:
    """What to raise where reading a ``tokenizer.json`` met something else than it holds."""
    return TamizError(f"{path}: not a file of the tokenizers library ({error!r})")


def _unsupported(tokenizer: dict[str, Any]) -> str:
    """Returns what onnxruntime-extensions would do differently, or nothing."""
    if (kind := tokenizer["model"].get("type")) != "BPE":
        return f"the tokenizer's model is {kind}, expected BPE"
    normalizers = tuple(step["type"] for step in _steps(tokenizer, "normalizer"))
    splits = tuple(_describe(step) for step in _steps(tokenizer, "pre_tokenizer"))
    if splits in _BYTE_LEVEL and normalizers in ((), ("NFC",)):
        return ""
    if not splits and normalizers == _SENTENCEPIECE:
        return ""
    return f"the tokenizer normalizes by {normalizers} and splits by {splits}"


def _describe(step: dict[str, Any]) -> str:
    """Names a pre-tokenizer's step; only what was compared with tokenizers has a plain name."""
    kind = str(step["type"])
    if kind == "Digits" and step["individual_digits"]:
        return "single digits"
    if kind == "ByteLevel" and not step["add_prefix_space"]:
        return "byte level with GPT-2's split" if step.get("use_regex", True) else "byte level"
    patterns = {"Regex": QWEN2_SPLIT}, {"Regex": LLAMA3_SPLIT}
    if kind == "Split" and step["pattern"] in patterns and step["behavior"] == "Isolated":
        return "split of qwen2 or llama 3"
    return kind


def _steps(tokenizer: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Returns the steps of the normalizer or pre-tokenizer, a sequence or one."""
    node = tokenizer.get(key)
    if node is None:
        return []
    steps: list[dict[str, Any]] = node.get("pretokenizers", node.get("normalizers", [node]))
    return steps


def _separations(tokenizer: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the (pattern, replacement) pairs that put separators into the text."""
    needs = {"Digits": _DIGIT, "Split": _NEWLINE}
    kinds = [step["type"] for step in _steps(tokenizer, "pre_tokenizer")]
    return [*(needs[kind] for kind in kinds if kind in needs), _END]


def _build(tokenizer: dict[str, Any]) -> ir.Model:
    text = ir.Value(name="text", type=ir.TensorType(ir.DataType.STRING), shape=ir.Shape([1]))
    ids = ir.Value(name="ids", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(["T"]))
    graph = ir.Graph([text], [ids], nodes=[], opset_imports={"": 18, _DOMAIN: 1}, name="tokenizer")
    tape = ir.tape.Tape(graph)
    for number, (pattern, rewrite) in enumerate(_separations(tokenizer)):
        texts = (text, _constant(tape, f"pattern_{number}", [pattern]))
        rewritten = _constant(tape, f"rewrite_{number}", [rewrite])
        text = tape.op("StringRegexReplace", [*texts, rewritten], domain=_DOMAIN)
    vocabulary, separator = _without_holes(tokenizer)
    model = tokenizer["model"] | {"vocab": vocabulary}
    added = [
        *tokenizer["added_tokens"],
        {"id": separator, "content": _SEPARATOR, "special": True},
    ]
    # The class tells the operator the family; as LlamaTokenizer it would split digits.
    byte_level = bool(_steps(tokenizer, "pre_tokenizer"))
    family = "PreTrainedTokenizerFast" if byte_level else "GemmaTokenizer"
    settings = {"tokenizer_class": family, "add_bos_token": False}
    plain = tokenizer | {"model": model, "added_tokens": added, "post_processor": None}
    attributes = {
        "tokenizer_vocab": json.dumps(plain, ensure_ascii=False, separators=(",", ":")),
        "tokenizer_config": json.dumps(settings),
    }
    batch = tape.op("HfJsonTokenizer", [text], attributes, domain=_DOMAIN)
    flat = tape.op("Reshape", [batch, _constant(tape, "shape", [-1])])
    # The separator has the highest id but for 4294967295, the id of a byte without a token.
    kept = tape.op("Less", [flat, _constant(tape, "separator", separator)])
    tape.op("Compress", [flat, kept], {"axis": 0}, output=ids)
    return ir.Model(graph, ir_version=8, producer_name="tamiz")


def _without_holes(tokenizer: dict[str, Any]) -> tuple[dict[str, int], int]:
    """Returns the vocabulary with a token for every id, and the first id after all of them.

    Raises:
        ValueError: If an id is no count, or far beyond the number of tokens.
    """
    vocabulary = dict(tokenizer["model"]["vocab"])
    vocabulary |= {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    for token, number in vocabulary.items():
        if type(number) is not int or not 0 <= number < len(vocabulary) + _MOST_HOLES:
            raise ValueError(f"the id of token {token!r} is {number!r}, expected a small count")
    end = max(vocabulary.values(), default=-1) + 1
    holes = sorted(set(range(end)) - set(vocabulary.values()))
    return vocabulary | {f"{_SEPARATOR}{number}": number for number in holes}, end


def _constant(tape: ir.tape.Tape, name: str, value: Any) -> ir.Value:
    return tape.initializer(ir.tensor(value), name)
