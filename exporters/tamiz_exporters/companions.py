"""The files beside the model in a bundle."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tamiz.api import TamizError, read_json, read_text, write_json
from tamiz_exporters.checked_file import reading
from tamiz_exporters.ends import complete_ends, token_text
from tamiz_exporters.genai import GENAI_CONFIG, describe
from tamiz_exporters.tokenizer import TOKENIZER_DEFAULTS, malformed, write_tokenizer
from tamiz_exporters.tokenizer_sources import made_tokenizer, settings_of_tokenizer

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
#: Where sentence-transformers and transformers.js keep the model, its companions in the folder
#: above.
ONNX_FOLDER = "onnx"
_COPIED = (
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    SPECIAL_TOKENS,
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
#: Modules that older versions of sentence-transformers write no files for.
_WITHOUT_FILES = ("Normalize", "Transformer")


def copy_companions(source: Path, directory: Path) -> None:
    """Copies what a bundle holds beside the model and completes it.

    ``genai_config.json`` of onnxruntime-genai says what ``config.json`` and
    ``generation_config.json`` would. ``generation_config.json`` gets the ends that any file says;
    ``chat_template.jinja`` moves into
    ``tokenizer_config.json``, as does whether texts begin with BOS; a tokenizer of transformers'
    general class gives no token types; ``tokenizer.json`` and ``tokenizer_config.json`` are made
    where other files say what they hold; ``tokenizer.onnx`` is written where the tokenizer allows
    it.

    Args:
        source: Folder that may hold the files; of a folder ``onnx`` the one above may hold them.
        directory: The bundle's folder.

    Raises:
        TamizError: If one of the files is malformed.
    """
    folders = [source, source.parent] if source.name == ONNX_FOLDER else [source]
    for name in _COPIED:
        _copy(_holder(folders, name), directory, [name])
    if (holder := _holder(folders, GENAI_CONFIG) / GENAI_CONFIG).is_file():
        describe(holder.parent, directory)
    copy_sentence_modules(_holder(folders, SENTENCE_MODULES), directory)
    _complete_tokenizer(folders, directory)
    names = (GENERATION_CONFIG, CONFIG, TOKENIZER_CONFIG, TOKENIZER)
    complete_ends(*(directory / name for name in names))
    write_tokenizer(directory)


def _holder(folders: list[Path], name: str) -> Path:
    """The first folder that holds a file; the first of all where none does."""
    return next((folder for folder in folders if (folder / name).is_file()), folders[0])


def copy_sentence_modules(source: Path, directory: Path) -> None:
    """Copies what sentence-transformers needs beside the model: its modules, such as the pooling.

    Args:
        source: Folder that may hold ``modules.json``.
        directory: The bundle's folder.

    Raises:
        TamizError: If ``modules.json`` is malformed, or a module that it names is missing.
    """
    path = source / SENTENCE_MODULES
    if not path.is_file():
        return
    try:
        modules = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise TamizError(f"{path}: not valid JSON: {error}") from error
    for module in modules if isinstance(modules, list) else [None]:
        fields = module if isinstance(module, dict) else {}
        folder, kind = fields.get("path"), str(fields.get("type"))
        if not isinstance(folder, str) or not (folder == "" or _MODULE.fullmatch(folder)):
            raise TamizError(
                f"{path}: holds {module!r}, expected modules with a path such as '1_Pooling'"
            )
        if folder:
            (directory / folder).mkdir(exist_ok=True)
            copied = _copy(source / folder, directory / folder, _MODULE_FILES)
            if not copied and not kind.endswith(_WITHOUT_FILES):
                raise TamizError(
                    f"{path}: names the module {folder}, but {source / folder} holds none of "
                    f"{', '.join(_MODULE_FILES)}; download the folder of the model whole"
                )
    _copy(source, directory, _SENTENCE)


def _copy(source: Path, directory: Path, names: Iterable[str]) -> list[str]:
    """Copies those of the files that `source` holds, and returns their names."""
    held = [name for name in names if (source / name).is_file()]
    for name in held:
        shutil.copyfile(source / name, directory / name)
    return held


def _complete_tokenizer(folders: list[Path], directory: Path) -> None:
    """Makes the tokenizer's files where they are missing, and completes its settings."""
    config, settings, special, tokenizer = (
        read_json(directory / name) if (directory / name).is_file() else None
        for name in (CONFIG, TOKENIZER_CONFIG, SPECIAL_TOKENS, TOKENIZER)
    )
    config, special = config or {}, special or {}
    if tokenizer is None:
        all_settings = special | (settings or {})
        with reading(folders[0]):
            tokenizer = made_tokenizer(folders, all_settings, config)
        if tokenizer is not None:
            write_json(directory / TOKENIZER, tokenizer, compact=True)
    if settings is None and tokenizer is not None:
        with reading(directory / TOKENIZER):
            settings = settings_of_tokenizer(tokenizer, special, config)
    if settings is None:
        return
    template = _holder(folders, CHAT_TEMPLATE) / CHAT_TEMPLATE
    if template.is_file():  # it wins over the one in the settings, as in transformers
        settings["chat_template"] = read_text(template)
    if "add_bos_token" not in settings and tokenizer is not None:
        bos = token_text(settings.get("bos_token"))
        settings["add_bos_token"] = _begins_with(directory / TOKENIZER, tokenizer, bos)
    if settings.get("tokenizer_class") == "PreTrainedTokenizerFast":
        settings = {**TOKENIZER_DEFAULTS, **settings}
    write_json(directory / TOKENIZER_CONFIG, settings)


def _begins_with(path: Path, tokenizer: dict[str, Any], token: str | None) -> bool:
    """Whether the template of the tokenizer's post-processor puts `token` before the text."""
    post_processor = tokenizer.get("post_processor")
    if token is None or not isinstance(post_processor, dict):
        return False
    begin = {"id": token, "type_id": 0}
    try:
        steps = post_processor.get("processors", [post_processor])
        return any(step.get("single", [])[:1] == [{"SpecialToken": begin}] for step in steps)
    except (AttributeError, TypeError) as error:
        raise malformed(path, error) from error
