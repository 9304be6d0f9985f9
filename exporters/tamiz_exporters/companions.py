"""The files beside the model in a bundle."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tamiz.api import TamizError, read_json, read_text, write_json
from tamiz_exporters.tokenizer import TOKENIZER_DEFAULTS, malformed, write_tokenizer

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
_COPIED = (
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "tokenizer.model",
    "vocab.txt",
)
#: What sentence-transformers reads: the list of modules, and settings.
SENTENCE_MODULES = "modules.json"
#: Kinds of models whose settings of texts have a name of their own, by sentence-transformers.
_SENTENCE_KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_SENTENCE = (
    SENTENCE_MODULES,
    "config_sentence_transformers.json",
    *(f"sentence_{kind}_config.json" for kind in _SENTENCE_KINDS),
)
#: The folder of a module, such as ``1_Pooling``; the model itself lies in the folder "".
_MODULE = re.compile(r"[0-9]+_[A-Za-z]+")
_MODULE_FILES = (CONFIG, "model.safetensors")
_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def copy_companions(source: Path, directory: Path) -> None:
    """Copies what a bundle holds beside the model and completes it.

    ``generation_config.json`` is made from ``config.json`` where absent; a chat template in a file
    of its own moves into ``tokenizer_config.json``, as does whether texts begin with BOS;
    a tokenizer of transformers' general class gives no token types; ``tokenizer.onnx`` is written
    where the tokenizer allows it.

    Args:
        source: Folder that may hold the files.
        directory: The bundle's folder.

    Raises:
        TamizError: If one of the files is malformed.
    """
    _copy(source, directory, _COPIED)
    copy_sentence_modules(source, directory)
    if (directory / CONFIG).is_file() and not (directory / GENERATION_CONFIG).is_file():
        config = read_json(directory / CONFIG)
        ids = {key: config[key] for key in _SPECIAL_IDS if config.get(key) is not None}
        write_json(directory / GENERATION_CONFIG, ids)
    _complete_tokenizer_config(source, directory)
    write_tokenizer(directory)


def copy_sentence_modules(source: Path, directory: Path) -> None:
    """Copies what sentence-transformers needs beside the model: its modules, such as the pooling.

    Args:
        source: Folder that may hold ``modules.json``.
        directory: The bundle's folder.

    Raises:
        TamizError: If ``modules.json`` is malformed.
    """
    path = source / SENTENCE_MODULES
    if not path.is_file():
        return
    try:
        modules = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise TamizError(f"{path}: not valid JSON: {error}") from error
    for module in modules if isinstance(modules, list) else [None]:
        folder = module.get("path") if isinstance(module, dict) else None
        if not isinstance(folder, str) or not (folder == "" or _MODULE.fullmatch(folder)):
            raise TamizError(
                f"{path}: holds {module!r}, expected modules with a path such as '1_Pooling'"
            )
        if folder:
            (directory / folder).mkdir(exist_ok=True)
            _copy(source / folder, directory / folder, _MODULE_FILES)
    _copy(source, directory, _SENTENCE)


def _copy(source: Path, directory: Path, names: Iterable[str]) -> None:
    """Copies those of the files that `source` holds."""
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, directory / name)


def _complete_tokenizer_config(source: Path, directory: Path) -> None:
    path = directory / TOKENIZER_CONFIG
    if not path.is_file():
        return
    config = read_json(path)
    template = source / CHAT_TEMPLATE
    if template.is_file():  # it wins over the one in the settings, as in transformers
        config["chat_template"] = read_text(template)
    if "add_bos_token" not in config and (directory / TOKENIZER).is_file():
        config["add_bos_token"] = _begins_with(directory / TOKENIZER, config.get("bos_token"))
    if config.get("tokenizer_class") == "PreTrainedTokenizerFast":
        config = {**TOKENIZER_DEFAULTS, **config}
    write_json(path, config)


def _begins_with(tokenizer: Path, token: Any) -> bool:
    """Whether the template of the tokenizer's post-processor puts `token` before the text."""
    post_processor = read_json(tokenizer).get("post_processor")
    content = token.get("content") if isinstance(token, dict) else token
    if content is None or not isinstance(post_processor, dict):
        return False
    begin = {"id": content, "type_id": 0}
    try:
        steps = post_processor.get("processors", [post_processor])
        return any(step.get("single", [])[:1] == [{"SpecialToken": begin}] for step in steps)
    except (AttributeError, TypeError) as error:
        raise malformed(tokenizer, error) from error
