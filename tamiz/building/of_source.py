"""From a source to a bundle that can be run: a GGUF file is exported and built once.

Weights keep their values. A decoder's products round their inputs to 8 bits, as llama.cpp's do
(the recipe `serve`), unless more precision is requested. The bundle lies in the user's cache
folder, named by what it is made of: the source's path, size and time of its last change, the
precision, and the version of tamiz.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import tamiz
from tamiz.files.bundle import MANIFEST, Bundle, check_target
from tamiz.files.errors import TamizError, naming
from tamiz.files.scratch import WRITTEN, held_folder

if TYPE_CHECKING:
    from tamiz.plugins import Plugins

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


@contextmanager
def dense_of(
    source: str | os.PathLike[str],
    plugins: Plugins,
    report: Callable[[str], None],
    place: Path | None = None,
) -> Iterator[Path]:
    """The bundle of a source that was not built; it is removed in the end where it had to be made.

    Args:
        source: A bundle, which is taken as it is, or what ``tamiz export`` takes.
        plugins: The loaded plugins.
        report: Gets a sentence about each step that takes long.
        place: What is made of it, and lies beside; None for nothing that stays.

    Raises:
        TamizError: The source cannot be read, or `place` must not be written.
    """
    from tamiz.survey.export import export

    path = Path(source)
    mistyped = not path.exists() and "/" in str(source) and path.parent.is_dir()
    if (path / MANIFEST).is_file() or mistyped:  # whoever opens it says what is wrong with it
        yield path
        return
    if place is not None:
        check_target(place, path if path.exists() else None)
    place = place.resolve() if place else _folder() / f"{path.stem}.dense"
    with naming(place):
        place.parent.mkdir(parents=True, exist_ok=True)
    with held_folder(place) as work:
        report(f"exporting {source}")
        yield export(str(source), work / WRITTEN, plugins).path


def _build(source: Path, target: Path, report: Callable[[str], None], precise: bool) -> None:
    """Builds a source in its own format."""
    from tamiz.building.build import build
    from tamiz.building.options import Options
    from tamiz.planning.plan import choose
    from tamiz.planning.recipes import recipes
    from tamiz.plugins import load
    from tamiz.survey.survey import survey

    plugins = load()
    with dense_of(source, plugins, report, target) as dense:
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
