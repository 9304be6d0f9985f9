"""Writes a bundle as a model of standard ONNX operators, which any runtime loads.

A dense bundle has products and lookups of packed weights, a built one also norms, attention and
feed-forward blocks as ops of the domain `tamiz`; `tamiz.survey.standard.ops` writes each.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tamiz.files import bundle as bundles
from tamiz.files.bundle import DATA, MANIFEST, MODEL, Bundle
from tamiz.files.errors import TamizError
from tamiz.files.mapping import map_tensors
from tamiz.interface.metadata import DOMAIN

if TYPE_CHECKING:
    import onnx_ir as ir

_log = logging.getLogger(__name__)

#: Tensors up to this many bytes stay in the .onnx file.
_INLINE = 1024


def write_standard(bundle: Bundle, target: Path, *, quantized: bool = False) -> Path:
    """Writes a folder with ``model.onnx``, its weights, and the bundle's other files.

    Args:
        bundle: A dense or a built bundle.
        target: The new folder; it appears when everything went well.
        quantized: Whether weights become those of ONNX Runtime's MatMulNBits and
            GatherBlockQuantized where these hold them without loss; else all are float32.

    Returns:
        The path of the model.

    Raises:
        TamizError: A node of the graph has no standard form, as those of some techniques, or the
            standard model is another one than the bundle's; see `tamiz.survey.self_check`.
    """
    import onnx_ir as ir

    model = ir.load(bundle.model)
    map_tensors(model, bundle.path)
    try:
        rewrite(model, quantized=quantized)
    except TamizError as error:
        raise TamizError(f"{bundle.model}: {error}") from error
    bundles.check_target(target, bundle.path)
    with bundles.writing(target) as folder:
        for name in bundle.manifest.files:
            if name not in (MODEL, DATA, MANIFEST):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(bundle.path / name, folder / name)
        ir.save(model, folder / MODEL, external_data=DATA, size_threshold_bytes=_INLINE)
        _compare(bundle, folder / MODEL, quantized)
    return target / MODEL


def _compare(bundle: Bundle, standard: Path, quantized: bool) -> None:
    """Compares the standard model with the bundle's, where an input is known that it runs on.

    A built model may round inputs of products to 8 bits, which the standard one does not. Weights
    of few bits may be those of another ONNX Runtime than the installed one.

    Raises:
        TamizError: It is another model.
    """
    from tamiz.survey.self_check import DifferentModelError, NotRunError, Reference

    reference = Reference.of(bundle.model)
    if reference is None:
        return
    try:
        reference.compare(standard, techniques=True, lossy=bundle.manifest.kind == "built")
    except DifferentModelError as error:
        if quantized and isinstance(error, NotRunError):
            _log.warning("%s: not compared with the bundle, as %s", bundle.model, error)
        elif not reference.is_drawn:
            raise TamizError(
                f"{bundle.model}: {error} in standard ONNX; nothing was written. Report it with the"
                " bundle"
            ) from error


def rewrite(model: ir.Model, *, quantized: bool = False) -> None:
    """Puts standard operators in place of those of the domain `tamiz`; see `write_standard`.

    Raises:
        TamizError: A node has no standard form.
    """
    from tamiz.survey.standard.nodes import Nodes, NoStandardFormError
    from tamiz.survey.standard.ops import MICROSOFT, write_node
    from tamiz.survey.standard.take_apart import take_apart

    take_apart(model)
    read = {value for value in model.graph.inputs if value.uses()}
    made: dict[Hashable, Any] = {}
    widths: dict[ir.Value, int] = {}
    for node in [node for node in model.graph if node.domain == DOMAIN]:
        try:
            write_node(Nodes(model, node, made, widths), quantized=quantized)
        except NoStandardFormError as reason:
            raise TamizError(
                f"node {node.name!r} ({node.op_type}) {reason}has no form in standard ONNX; "
                "try a build without its technique, or an export of the source with --dtype "
                "float32; state spaces have none in any"
            ) from reason
    model.graph.opset_imports.pop(DOMAIN, None)
    if any(node.domain == MICROSOFT for node in model.graph):
        model.graph.opset_imports[MICROSOFT] = 1
    _remove_unread(model, read)


def _remove_unread(model: ir.Model, read: set[ir.Value]) -> None:
    """Removes constants, and inputs, that nothing reads any more."""
    for name, value in list(model.graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del model.graph.initializers[name]
    for value in [value for value in model.graph.inputs if value in read]:
        if not value.uses() and not value.is_graph_output():
            model.graph.inputs.remove(value)
