"""What the files of sentence-transformers say of the model that they lie beside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tamiz.api import TamizError, read_json, read_text
from tamiz_exporters.companions import CONFIG, SENTENCE_MODULES

_SETTINGS = "config_sentence_transformers.json"
#: The module that makes a score of the logits of two tokens behind a pair of texts.
_LOGIT_SCORE = "LogitScore"
_TRUE, _FALSE = "true_token_id", "false_token_id"


def is_embedder(folder: Path) -> bool:
    """Whether hidden states are pooled: there are modules, and they are of no cross-encoder.

    Newer versions of sentence-transformers write modules for cross-encoders, too.

    Raises:
        TamizError: A file is malformed.
    """
    if not (folder / SENTENCE_MODULES).is_file():
        return False
    path = folder / _SETTINGS
    return not path.is_file() or read_json(path).get("model_type") != "CrossEncoder"


def answer_tokens(folder: Path) -> tuple[int, ...] | None:
    """The tokens whose logits are the score of a pair; None where the score is no logit.

    Returns:
        The token of a relevant text and, where its logit is subtracted, that of another text.

    Raises:
        TamizError: A file is malformed.
    """
    for module in _modules(folder):
        if str(module.get("type")).rpartition(".")[2] == _LOGIT_SCORE:
            path = folder / str(module.get("path")) / CONFIG
            config = read_json(path)
            tokens = [config.get(_TRUE), config.get(_FALSE)]
            for key, token in zip((_TRUE, _FALSE), tokens, strict=True):
                if not (type(token) is int and token >= 0) and (key == _TRUE or token is not None):
                    raise TamizError(f"{path}: {key} is {token!r}, expected a token id")
            return tuple(token for token in tokens if token is not None)
    return None


def _modules(folder: Path) -> list[dict[str, Any]]:
    path = folder / SENTENCE_MODULES
    if not path.is_file():
        return []
    try:
        listed = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise TamizError(f"{path}: not valid JSON: {error}") from error
    return [m for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []
