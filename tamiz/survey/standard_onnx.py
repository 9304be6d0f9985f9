"""Writes a dense bundle as a model of standard ONNX operators, which any runtime loads.

    BlockMatMul(x, W, bias)   becomes   MatMul(x, W') + bias,   W' float32 [K, N]
    BlockGather(ids, W)       becomes   Gather(W', ids),        W' float32 [N, K]

W' has the values that the source stores, bit for bit; products round in other places.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tamiz.api.linear import stored_format
from tamiz.files import bundle as bundles
from tamiz.files.bundle import DATA, MANIFEST, MODEL, Bundle
from tamiz.files.errors import TamizError
from tamiz.files.mapping import map_tensors
from tamiz.interface.metadata import DOMAIN

if TYPE_CHECKING:
    import onnx_ir as ir

#: Tensors up to this many bytes stay in the .onnx file.
_INLINE = 1024
_MASK, _BIAS = 2, 3


def write_standard(bundle: Bundle, target: Path) -> Path:
    """Writes a folder with ``model.onnx``, its weights, and the bundle's other files.

    Args:
        bundle: A dense bundle.
        target: The new folder; it appears when everything went well.

    Returns:
        The path of the model.

    Raises:
        TamizError: The bundle is a built one, or its graph has an operator that ONNX has not.
    """
    import onnx_ir as ir

    if bundle.manifest.kind != "dense":
        raise TamizError(
            f"{bundle.path}: is a {bundle.manifest.kind} bundle, whose techniques ONNX has no "
            "operators for; give its dense bundle"
        )
    model = ir.load(bundle.model)
    map_tensors(model, bundle.path)
    for node in list(model.graph):
        if node.domain == DOMAIN:
            _replace(model, node, bundle)
    model.graph.opset_imports.pop(DOMAIN, None)
    _remove_unread(model)
    bundles.check_target(target, bundle.path)
    with bundles.writing(target) as folder:
        for name in bundle.manifest.files:
            if name not in (MODEL, DATA, MANIFEST):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(bundle.path / name, folder / name)
        ir.save(model, folder / MODEL, external_data=DATA, size_threshold_bytes=_INLINE)
    return target / MODEL


def _replace(model: ir.Model, node: ir.Node, bundle: Bundle) -> None:
    import onnx_ir as ir

    inputs = [*node.inputs, None, None, None, None]
    lookup, weight = node.op_type == "BlockGather", inputs[1]
    if stored_format(node) is None or weight is None or inputs[_MASK] is not None:
        raise TamizError(
            f"{bundle.model}: node {node.name!r} ({node.op_type}) has no form in standard ONNX"
        )
    unpacked = _unpacked(model, node, weight, rows=lookup)
    name, output = node.name or node.op_type, node.outputs[0]
    if lookup:
        made = [ir.node("Gather", [unpacked, inputs[0]], {"axis": 0}, name=name)]
    else:
        made = [ir.node("MatMul", [inputs[0], unpacked], name=name)]
        if inputs[_BIAS] is not None:
            product = made[0].outputs[0]
            product.name = f"{output.name}.product"
            made.append(ir.node("Add", [product, inputs[_BIAS]], name=f"{name}.bias"))
    model.graph.insert_before(node, made)
    new = made[-1].outputs[0]
    output.replace_all_uses_with(new, replace_graph_outputs=True)
    model.graph.remove(node, safe=True)
    new.name, new.type, new.shape = output.name, output.type, output.shape


def _unpacked(model: ir.Model, node: ir.Node, weight: ir.Value, *, rows: bool) -> ir.Value:
    """The float32 values of a packed weight, computed when they are written."""
    import onnx_ir as ir

    from tamiz_ops import formats

    packed = weight.const_value
    assert packed is not None
    n, k = (node.attributes[name].as_int() for name in "nk")
    format = formats.find_format(str(stored_format(node)))
    name = f"{weight.name}.{'rows' if rows else 'columns'}"
    if name in model.graph.initializers:
        return model.graph.initializers[name]
    shape = ir.Shape([n, k] if rows else [k, n])

    def read() -> ir.TensorProtocol:
        values = formats.dequantize(format, packed.numpy(), n, k)
        return ir.tensor(values if rows else np.ascontiguousarray(values.T), name=name)

    lazy = ir.LazyTensor(read, dtype=ir.DataType.FLOAT, shape=shape, name=name)
    value = ir.Value(
        name=name, shape=shape, type=ir.TensorType(ir.DataType.FLOAT), const_value=lazy
    )
    model.graph.register_initializer(value)
    return value


def _remove_unread(model: ir.Model) -> None:
    for name, value in list(model.graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del model.graph.initializers[name]
