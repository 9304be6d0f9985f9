"""Turns a source into a dense bundle with the first exporter that reads it."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tamiz.files import bundle as bundles
from tamiz.files.bundle import Bundle, Source
from tamiz.files.errors import TamizError

if TYPE_CHECKING:
    from tamiz.api.hookspecs import Exporter
    from tamiz.plugins import Plugins

_log = logging.getLogger(__name__)


def export(
    source: str,
    target: str | Path,
    plugins: Plugins,
    dtype: str | None = None,
    task: str | None = None,
    file: str | None = None,
    activation: str | None = None,
) -> Bundle:
    """Exports a source into a new dense bundle.

    Args:
        source: A path, a hub id, or a name such as ``smollm2``.
        target: Folder of the bundle; it appears when everything went well.
        plugins: The loaded plugins.
        dtype: Type of the weights, ``float32`` or what the exporter offers beside it; None for its
            default.
        task: What to export the model for, in optimum's words; only an exporter that takes a task
            is tried then. None lets the exporter decide.
        file: Which model of a folder; only an exporter that takes one is tried then. None lets
            the exporter decide.
        activation: Of the feed-forward block, where the source names none; only an exporter that
            takes one is tried then. None lets the exporter decide.

    A source that is an .onnx file is run beside what was made of it; see `tamiz.survey.self_check`.

    Raises:
        TamizError: No exporter reads the source, the exporter refuses it, `target` must not be
            written, or the dense model is another one than the .onnx file.
    """
    options = {"task": task, "file": file, "activation": activation}
    exporter = _exporter(source, plugins, **options)
    settings = {} if dtype is None or not exporter.dtypes else {"dtype": dtype}
    settings |= {k: v for k, v in options.items() if v is not None}
    offered = exporter.dtypes or ("float32",)
    if dtype is not None and dtype not in offered:
        raise TamizError(
            f"{source}: found --dtype {dtype}, expected {' or '.join(offered)} for {exporter.name}"
        )
    bundles.check_target(Path(target), Path(source) if Path(source).exists() else None)
    with bundles.writing(target) as folder:
        read = exporter.export(source, folder, **settings)
        path = Path(read)
        if path.suffix.lower() == ".onnx" and path.is_file():
            _compare(path, folder / bundles.MODEL)
        origin = Source(path.name, bundles.sha256(path)) if path.is_file() else Source(read)
        weights = "stored" if (dtype or offered[0]) == "stored" else "float32"
        bundles.write_manifest(folder, "dense", origin, weights=weights)
    return Bundle.open(target)


def _compare(source: Path, dense: Path) -> None:
    """Compares a dense model with the .onnx file that it was exported from.

    Raises:
        TamizError: It is another model.
    """
    from tamiz.survey.self_check import DifferentModelError, Reference

    reference = None
    with suppress(TamizError):  # ONNX Runtime does not load the source, as some of bfloat16
        reference = Reference.of(source, sizes=_input_sizes(dense))
    if reference is None:
        _log.warning("%s: not compared with its export: no input is known that it runs on", source)
        return
    try:
        reference.compare_export(dense)
    except DifferentModelError as error:
        if not reference.is_drawn:
            raise TamizError(
                f"{source}: {error} after its export; nothing was written. Report it with the model"
            ) from error


def _input_sizes(dense: Path) -> dict[str, list[int | str | None]]:
    """Dimensions of inputs by name: an exporter may know more of them than the file says."""
    import onnx_ir as ir

    inputs = ir.load(dense).graph.inputs
    return {
        value.name or "": [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        for value in inputs
        if value.shape is not None
    }


def _exporter(source: str, plugins: Plugins, **given: str | None) -> Exporter:
    """The first exporter that reads a source, and takes the options that are given."""
    readers = [e for e in plugins.exporters() if e.accepts(source)]
    if not readers:
        found = "no exporter reads it" if Path(source).exists() else "no such file or folder"
        offered = [exporter.summary for exporter in plugins.exporters()]
        raise TamizError(f"{source}: {found}, expected {'; or '.join(offered) or 'an exporter'}")
    for option, value in given.items():
        if value is None:
            continue
        taking = [e for e in readers if getattr(e, f"takes_{option}")]
        if not taking:
            raise TamizError(
                f"{source}: found --{option} {value}, expected none for {readers[0].name}"
            )
        readers = taking
    return readers[0]
