"""From a source to a bundle that can be run: a GGUF file is exported and built once.

Weights keep their values. A decoder's products round their inputs to 8 bits, as llama.cpp's do
(the recipe `serve`), unless more precision is requested. The bundle lies in the user's cache
folder, named by what it is made of: the source's path, size and time of its last change, the
precision, and the version of tamiz.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import tamiz
from tamiz.files.bundle import MANIFEST, Bundle
from tamiz.files.errors import TamizError, naming
from tamiz.files.scratch import WRITTEN, held_folder

#: The recipe of decoders.
RECIPE = "serve"


def as_bundle(source: str | os.PathLike[str], report: Callable[[str], None]) -> Path:
    """A bundle as it is, dense or built; of any other source its bundle, see `bundle_of`."""
    path = Path(source)
    return path if (path / MANIFEST).is_file() else bundle_of(path, report)


def bundle_of(
    source: str | os.PathLike[str], report: Callable[[str], None], precise: bool = False
) -> Path:
    """The bundle of a source; it is built where there is none yet.

    Args:
        source: A built bundle, or what ``tamiz export`` takes: a GGUF file, a folder, a dense
            bundle.
        report: Gets a sentence about each step that takes long.
        precise: Whether inputs of products keep 16 bits. A built bundle stays as it is.

    Raises:
        TamizError: The source cannot be read or built.
    """
    path = Path(source)
    if (path / MANIFEST).is_file() and Bundle.open(path).manifest.kind == "built":
        return path
    if not path.exists():
        raise TamizError(
            f"{path}: no such file or folder, expected a bundle, a GGUF file or a folder that "
            "'tamiz export' reads"
        )
    built = _folder() / f"{path.stem}-{_name(path, precise)}"
    if not (built / MANIFEST).is_file():
        _build(path, built, report, precise)
    return built


def _build(source: Path, target: Path, report: Callable[[str], None], precise: bool) -> None:
    """Builds a source in its own format."""
    from tamiz.building.build import build
    from tamiz.building.options import Options
    from tamiz.planning.plan import choose
    from tamiz.planning.recipes import recipes
    from tamiz.plugins import load
    from tamiz.survey.export import export
    from tamiz.survey.survey import survey

    plugins = load()
    with naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with held_folder(target) as work:
        dense = source
        if not (source / MANIFEST).is_file():
            report(f"exporting {source}")
            dense = export(str(source), work / WRITTEN, plugins).path
        report(f"building {target}")
        surveyed, rounding = survey(Bundle.open_dense(dense), plugins), recipes()[RECIPE].techniques
        wanted = rounding if surveyed.decodes and not precise else {}
        chosen = choose(plugins.techniques(), wanted)
        choices = [choice for choice in chosen if choice.technique.name in wanted]
        # The loss of rounded inputs is known and small: measuring it here would take minutes.
        build(surveyed, target, choices, plugins, Options(max_dppl=None if wanted else 0.02))


def _folder() -> Path:
    """Where bundles of sources lie."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tamiz" / "served"


def _name(source: Path, precise: bool) -> str:
    """A name that changes with the source and the precision."""
    files = sorted(f for f in source.rglob("*") if f.is_file()) if source.is_dir() else [source]
    digest = blake2b(f"{tamiz.__version__} {precise}".encode(), digest_size=8)
    for file in files:
        status = file.stat()
        digest.update(f"{file.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
