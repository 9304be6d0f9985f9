"""Turns a source into a dense bundle with the first exporter that reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tamiz.files import bundle as bundles
from tamiz.files.bundle import Bundle, Source
from tamiz.files.errors import TamizError

if TYPE_CHECKING:
    from tamiz.plugins import Plugins


def export(source: str, target: str | Path, plugins: Plugins) -> Bundle:
    """Exports a source into a new dense bundle.

    Args:
        source: A path, a hub id, or a name such as ``smollm2``.
        target: Folder of the bundle; it appears when everything went well.
        plugins: The loaded plugins.

    Raises:
        TamizError: No exporter reads the source, the exporter refuses it, or `target` must not
            be written.
    """
    exporter = next((e for e in plugins.exporters() if e.accepts(source)), None)
    if exporter is None:
        known = "; ".join(f"{e.name}: {e.summary}" for e in plugins.exporters()) or "none installed"
        raise TamizError(f"{source}: no exporter reads it ({known})")
    bundles.check_target(Path(target), Path(source) if Path(source).exists() else None)
    with bundles.writing(target) as folder:
        read = exporter.export(source, folder)
        path = Path(read)
        origin = Source(path.name, bundles.sha256(path)) if path.is_file() else Source(read)
        bundles.write_manifest(folder, "dense", origin)
    return Bundle.open(target)
