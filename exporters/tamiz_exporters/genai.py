"""What ``genai_config.json`` of onnxruntime-genai says, as Hugging Face's files say it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tamiz.api import TamizError, read_json, write_json

GENAI_CONFIG = "genai_config.json"
#: Fields of ``config.json`` by where they are in ``genai_config.json``.
_FIELDS = {
    "max_position_embeddings": ("model", "context_length"),
    "vocab_size": ("model", "vocab_size"),
    "model_type": ("model", "type"),
    "bos_token_id": ("model", "bos_token_id"),
    "eos_token_id": ("model", "eos_token_id"),
    "pad_token_id": ("model", "pad_token_id"),
    "hidden_size": ("model", "decoder", "hidden_size"),
    "head_dim": ("model", "decoder", "head_size"),
    "num_attention_heads": ("model", "decoder", "num_attention_heads"),
    "num_key_value_heads": ("model", "decoder", "num_key_value_heads"),
    "num_hidden_layers": ("model", "decoder", "num_hidden_layers"),
}
#: Defaults of a search, which ``generation_config.json`` calls by the same names.
_SEARCH = ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty")
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def model_file(folder: Path) -> str | None:
    """The name of the decoder's graph; None where the folder has no ``genai_config.json``.

    Raises:
        TamizError: The model has several graphs, or the file does not name one.
    """
    path = folder / GENAI_CONFIG
    if not path.is_file():
        return None
    found = read_json(path)
    name = _at(found, ("model", "decoder", "filename"))
    if not isinstance(name, str) or Path(name).name != name:
        raise TamizError(
            f"{path}: model.decoder.filename is {name!r}, expected the name of one file beside it; "
            "models of several graphs are not supported"
        )
    return name


def describe(folder: Path, directory: Path) -> None:
    """Writes ``config.json`` and ``generation_config.json`` where they are missing.

    Args:
        folder: Holds ``genai_config.json``.
        directory: The bundle's folder.
    """
    found = read_json(folder / GENAI_CONFIG)
    config = {name: _at(found, place) for name, place in _FIELDS.items()}
    config = {name: value for name, value in config.items() if value is not None}
    search = _at(found, ("search",))
    given = search if isinstance(search, dict) else {}
    settings = {name: given[name] for name in _SEARCH if name in given}
    settings |= {name: config[name] for name in _IDS if name in config}
    for name, values in (("config.json", config), ("generation_config.json", settings)):
        if values and not (directory / name).is_file():
            write_json(directory / name, values)


def _at(found: Any, place: tuple[str, ...]) -> Any:
    for key in place:
        found = found.get(key) if isinstance(found, dict) else None
    return found
