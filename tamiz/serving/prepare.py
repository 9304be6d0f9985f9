"""From a source to a bundle that can be served: a GGUF file is exported and built once.

The bundle lies in the user's cache folder, named by what it is made of: the source's path, size
and time of its last change, and the version of tamiz.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import tamiz
from tamiz.files.bundle import MANIFEST, Bundle
from tamiz.files.errors import TamizError


def bundle_of(source: str, report: Callable[[str], None]) -> Path:
    """The bundle of a source; it is built where there is none yet.

    Args:
        source: A built bundle, or what ``tamiz export`` takes: a GGUF file, a folder, a dense
            bundle.
        report: Gets a sentence about each step that takes long.

    Raises:
        TamizError: The source cannot be read or built.
    """
    path = Path(source)
    if (path / MANIFEST).is_file() and Bundle.open(path).manifest.kind == "built":
        return path
    if not path.exists():
        raise TamizError(f"{source}: no such file or folder, expected a bundle or a GGUF file")
    built = _folder() / f"{path.stem}-{_name(path)}"
    if not (built / MANIFEST).is_file():
        _build(path, built, report)
    return built


def _build(source: Path, target: Path, report: Callable[[str], None]) -> None:
    """Builds a source in its own format: weights keep their values."""
    from tempfile import TemporaryDirectory

    from tamiz.building.build import build
    from tamiz.building.options import Options
    from tamiz.plugins import load
    from tamiz.survey.export import export

    plugins = load()
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=".serve-") as work:
        dense = source
        if not (source / MANIFEST).is_file():
            report(f"exporting {source}")
            dense = export(str(source), Path(work) / "dense", plugins).path
        report(f"building {target}")
        build(dense, target, [], plugins, Options())


def _folder() -> Path:
    """Where bundles of sources lie."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tamiz" / "served"


def _name(source: Path) -> str:
    """A name that changes with the source."""
    files = sorted(f for f in source.rglob("*") if f.is_file()) if source.is_dir() else [source]
    digest = blake2b(tamiz.__version__.encode(), digest_size=8)
    for file in files:
        status = file.stat()
        digest.update(f"{file.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
