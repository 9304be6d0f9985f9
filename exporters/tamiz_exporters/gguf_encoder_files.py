"""The files beside an encoder of a GGUF file: configuration, tokenizer, sentence-transformers'."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from tamiz.api import write_json
from tamiz_exporters.companions import CONFIG, SENTENCE_MODULES, TOKENIZER, TOKENIZER_CONFIG
from tamiz_exporters.gguf_encoder import FIRST, LAST, MEAN, GgufEncoder
from tamiz_exporters.gguf_vocabulary import CONTROL, Vocabulary
from tamiz_exporters.tokenizer import write_tokenizer
from tamiz_exporters.word_pieces import around, special_tokens, tokenizer_of_words

_POOLING = {MEAN: "mean_tokens", FIRST: "cls_token", LAST: "lasttoken"}
_MODULE = "sentence_transformers.models."
#: What begins a word, in both kinds of vocabularies.
_BEGIN = "▁"


def write_encoder_files(model: GgufEncoder, directory: Path) -> None:
    """Writes what a bundle holds beside the graph.

    llama.cpp scales embeddings to length 1, so that is a module where there is a pooling.

    Raises:
        TamizError: The vocabulary is malformed, or of an unknown kind.
    """
    vocabulary = Vocabulary(model.file, model.vocabulary, {})
    names = _special(model, vocabulary)
    kind = model.file.get("tokenizer.ggml.model", str)
    makers = {"bert": _word_pieces, "t5": _unigrams}
    if kind not in makers:
        model.file.fail("tokenizer.ggml.model", kind, f"{' or '.join(makers)}, for an encoder")
    write_json(directory / TOKENIZER, makers[kind](model, vocabulary, names), compact=True)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.context}
    write_json(directory / TOKENIZER_CONFIG, settings | names)
    write_json(directory / CONFIG, _config(model))
    write_tokenizer(directory)
    if model.pooling in _POOLING:
        _write_modules(model, directory)


def _config(model: GgufEncoder) -> dict[str, Any]:
    config, traits = model.config, model.traits
    head = config.head is not None
    out = {
        "architectures": [f"{traits.stem}{'ForSequenceClassification' if head else 'Model'}"],
        "model_type": traits.model_type,
        "hidden_act": traits.defaults["hidden_act"],
        "hidden_size": config.hidden,
        "intermediate_size": model.ffn,
        "layer_norm_eps": config.epsilon,
        "max_position_embeddings": model.context,
        "num_attention_heads": config.heads,
        "num_hidden_layers": len(config.layers),
        "pad_token_id": config.padding,
        "type_vocab_size": config.types,
        "vocab_size": model.vocabulary,
    }
    if config.head is not None:
        count, given = config.head.labels, model.label_names
        labels = given if len(given) == count else [f"LABEL_{n}" for n in range(count)]
        out["id2label"] = {str(number): str(label) for number, label in enumerate(labels)}
    return out


def _write_modules(model: GgufEncoder, directory: Path) -> None:
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"{_MODULE}{kind}"}
        for number, (path, kind) in enumerate(kinds)
    ]
    (directory / SENTENCE_MODULES).write_text(json.dumps(modules, indent=2) + "\n", "utf-8")
    (directory / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{mode}": key == model.pooling for key, mode in _POOLING.items()}
    size = {"word_embedding_dimension": model.config.hidden}
    write_json(directory / "1_Pooling" / CONFIG, size | modes)
    settings = {"max_seq_length": model.context, "do_lower_case": False}
    write_json(directory / "sentence_bert_config.json", settings)


def _special(model: GgufEncoder, vocabulary: Vocabulary) -> dict[str, str]:
    """Special tokens by their settings; in GGUF the first token may be bos, the last eos."""
    keys = {
        "cls_token": ("cls_token_id", "bos_token_id"),
        "sep_token": ("seperator_token_id", "eos_token_id"),
        "unk_token": ("unknown_token_id",),
        "pad_token": ("padding_token_id",),
        "mask_token": ("mask_token_id",),
    }
    found = {}
    for name, choices in keys.items():
        given = (model.file.metadata.get(f"tokenizer.ggml.{key}") for key in choices)
        number = next((each for each in given if each is not None), None)
        if number is None:
            continue
        if type(number) is not int or not 0 <= number < model.vocabulary:
            vocabulary.fail(choices[0], number, f"a token id below {model.vocabulary}")
        found[name] = vocabulary.tokens[number]
    return found


def _word_pieces(
    model: GgufEncoder, vocabulary: Vocabulary, names: dict[str, str]
) -> dict[str, Any]:
    """WordPiece: llama.cpp marks what begins a word, BERT what goes on with one."""
    control = {vocabulary.tokens[number] for number in vocabulary.special(CONTROL)}
    control.update(names.values())

    def written(token: str) -> str:
        if token.startswith(_BEGIN):
            return token[len(_BEGIN) :]
        whole = token in control or (token.startswith("[") and token.endswith("]"))
        return token if whole else f"##{token}"

    tokens = [written(token) for token in vocabulary.tokens]
    capitals = any(t != t.lower() for t in tokens if not t.startswith("[") and t not in control)
    lower = model.file.get("tokenizer.ggml.normalizer.lowercase", bool, not capitals)
    settings: dict[str, Any] = {**names, "do_lower_case": lower}
    key = "tokenizer.ggml.normalizer.strip_accents"
    if key in model.file.metadata:
        settings["strip_accents"] = model.file.get(key, bool)
    return tokenizer_of_words(model.file.path, tokens, settings)


def _unigrams(model: GgufEncoder, vocabulary: Vocabulary, names: dict[str, str]) -> dict[str, Any]:
    """Unigram of SentencePiece, as XLM-RoBERTa's tokenizer has it."""
    file = model.file
    scores = vocabulary.scores()
    for name in ("cls_token", "sep_token", "unk_token"):
        if name not in names:
            vocabulary.fail(f"id of the {name}", "nothing", "a token id")
    steps: list[dict[str, Any]] = []
    charsmap = file.metadata.get("tokenizer.ggml.precompiled_charsmap")
    if isinstance(charsmap, np.ndarray):
        coded = base64.b64encode(charsmap.astype(np.uint8).tobytes()).decode("ascii")
        steps.append({"type": "Precompiled", "precompiled_charsmap": coded})
    if file.get("tokenizer.ggml.remove_extra_whitespaces", bool, True):
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    first = file.get("tokenizer.ggml.add_space_prefix", bool, True)
    space = {"type": "Metaspace", "replacement": _BEGIN, "split": True}
    space["prepend_scheme"] = "always" if first else "never"
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special_tokens(names.values(), vocabulary.ids),
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, space],
        },
        "post_processor": around(
            names["cls_token"], names["sep_token"], vocabulary.ids, twice=True
        ),
        "decoder": space,
        "model": {
            "type": "Unigram",
            "unk_id": vocabulary.ids[names["unk_token"]],
            "vocab": [list(pair) for pair in zip(vocabulary.tokens, scores, strict=True)],
            "byte_fallback": False,
        },
    }
