"""What a server is started with: models by name, and keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tamiz.files.errors import TamizError


def names_of_sources(sources: Sequence[str]) -> dict[str, str]:
    """The sources by the names of their models.

    Args:
        sources: Each a path, or ``NAME=PATH``; without a name that of the file or folder.

    Raises:
        TamizError: Two models have one name, or a source does not exist.
    """
    named: dict[str, str] = {}
    for source in sources:
        name, given, path = source.partition("=")
        if not given or "/" in name:
            path = source
            name = Path(source).resolve().stem if source.endswith(".gguf") else Path(source).name
        if name in named:
            raise TamizError(f"two models are named {name}; try NAME={path}")
        if not Path(path).exists():
            raise TamizError(f"{path}: no such file or folder, expected a bundle or a model")
        named[name] = path
    return named


def read_keys(path: str | Path) -> list[str]:
    """The API keys of a file, one a line.

    Raises:
        TamizError: It has none.
    """
    lines = Path(path).read_text("utf-8").splitlines()
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise TamizError(f"{path}: has no keys, expected one on each line")
    return keys
