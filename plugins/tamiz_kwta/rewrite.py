"""Puts KwtaMask before the product of a site and gives it to the product as its mask."""

from __future__ import annotations

import onnx_ir as ir

import tamiz_ops
from tamiz.api import Fit, FitError, Site, add_initializer, find_node, insert


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Adds the mask to the node that whoever owns the weights has put at `site`.

    Raises:
        FitError: That node takes no mask.
    """
    node = find_node(model, site)
    ports = _ports(node)
    if "mask" not in ports or "x" not in ports:
        raise FitError(f"{node.op_type}, the op of its weights, takes no mask")
    positions = next((v for v in model.graph.inputs if v.name == "position_ids"), None)
    x, earlier = node.inputs[ports["x"]], _input(node, ports["mask"])
    assert x is not None

    def constant(role: str) -> ir.Value | None:
        if role not in fit.tensors:
            return None
        return add_initializer(model, f"{site.id}.kwta.{role}", fit.tensors[role])

    block = int(fit.attributes["block"])
    centred = "center" in fit.tensors or "renorm" in fit.attributes
    outputs = [ir.Value(name=f"{site.id}.kwta.mask", type=ir.TensorType(ir.DataType.UINT8))]
    if centred:
        outputs.append(ir.Value(name=f"{site.id}.kwta.centred", type=x.type, shape=x.shape))
    mask = insert(
        model,
        node,
        f"{site.id}.kwta",
        "KwtaMask",
        [x, constant("score"), positions, earlier, constant("center"), constant("slope")],
        fit.attributes,
        outputs,
    )
    node.replace_input_with(ports["mask"], outputs[0])
    if centred:
        node.replace_input_with(ports["x"], outputs[1])
    if "shift" in fit.tensors:
        node.replace_input_with(ports["bias"], _shifted(model, site, node, ports["bias"], fit))
    node.attributes["block"] = ir.AttrInt64("block", block)
    return [mask, node]


def _ports(node: ir.Node) -> dict[str, int]:
    """Index of each input by name."""
    schema = tamiz_ops.schemas().get(node.op_type) if node.domain == "tamiz" else None
    return {} if schema is None else {p["name"]: i for i, p in enumerate(schema["inputs"])}


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _shifted(model: ir.Model, site: Site, node: ir.Node, index: int, fit: Fit) -> ir.Value:
    """The bias with W μ added."""
    shift, bias = fit.tensors["shift"], _input(node, index)
    if bias is not None:
        if bias.const_value is None:
            raise FitError("its bias is computed, expected a constant")
        shift = shift + bias.const_value.numpy()
    return add_initializer(model, f"{site.id}.kwta.shift", shift)
