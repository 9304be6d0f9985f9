"""Puts EventSelect before and EventSum after the product at a site, and their state into the graph.

The state ``past_event.<site>`` → ``present_event.<site>`` stands beside the KV cache.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.convenience import convert_attribute

import tamiz_ops
from tamiz.api import DOMAIN, LAYER, SITE, Fit, FitError, Site, add_initializer, present_of

_SELECT = ("alpha", "theta", "keep", "quorum", "budget_us", "age_max", "gap_every", "dense_first")


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Wraps the product at `site`, whichever op with a mask it is.

    Raises:
        FitError: The node takes no mask, or the graph does not tell positions.
    """
    node = next((n for n in model.graph if n.name == site.node), None)
    ports = _ports(node)
    attention = next((v for v in model.graph.inputs if v.name == "attention_mask"), None)
    if node is None or "mask" not in ports:
        found = "nothing" if node is None else node.op_type
        raise FitError(f"its node is {found}, expected an op of the domain tamiz with a mask")
    if attention is None:
        raise FitError("the graph has no input attention_mask, which tells positions")
    x, output = node.inputs[0], node.outputs[0]
    attributes = {"k": site.in_features, "n": site.out_features} | dict(fit.attributes)
    past = _state(model, site, attention, carried=attributes["alpha"] != 0)
    candidates = _input(node, ports.index("mask"))
    centred = _is_centred(x)
    select = _node(
        node,
        "EventSelect",
        [x, past, None if centred else _constant(model, site, fit, "mean"),
         _constant(model, site, fit, "scale"), attention, candidates],
        {name: attributes[name] for name in ("k", "n", "beta", *_SELECT)}
        | {"block": _block(node) if candidates is not None else 1},
        5 if float(attributes["budget_us"]) >= 0 else 4,
    )  # fmt: skip
    delta, mask, plan, reference, *started = select.outputs
    node.resize_inputs(max(len(node.inputs), ports.index("mask") + 1))
    node.replace_input_with(0, delta)
    node.replace_input_with(ports.index("mask"), mask)
    node.attributes["block"] = convert_attribute("block", 1)
    total = _node(
        node,
        "EventSum",
        [output, past, plan, reference, _base(model, site, fit, node, ports, centred), *started],
        {name: attributes[name] for name in ("k", "n", "alpha", "beta", "gap_tol")},
        2,
    )
    _connect(model, site, node, select, total)
    return [select, node, total]


def _ports(node: ir.Node | None) -> list[str]:
    if node is None or node.domain != DOMAIN:
        return []
    return [port["name"] for port in tamiz_ops.schemas()[node.op_type]["inputs"]]


def _input(node: ir.Node, port: int) -> ir.Value | None:
    return node.inputs[port] if port < len(node.inputs) else None


def _is_centred(x: ir.Value | None) -> bool:
    """Whether an op before has taken a mean off the inputs, and added its product to the bias.

    What is expected of them is then centred, too.
    """
    before = None if x is None else x.producer()
    ports = _ports(before)
    return (
        before is not None
        and "center" in ports
        and (_input(before, ports.index("center")) is not None)
    )


def _block(node: ir.Node) -> int:
    given = node.attributes.get("block")
    if given is not None:
        return given.as_int()
    declared = {a["name"]: a["default"] for a in tamiz_ops.schemas()[node.op_type]["attributes"]}
    return int(declared["block"])


def _state(model: ir.Model, site: Site, attention: ir.Value, carried: bool) -> ir.Value:
    """The graph's new input; its first dimension is that of the attention mask."""
    width = 3 + (site.in_features + site.out_features if carried else 0)
    batch = None if attention.shape is None else attention.shape[0]
    past = ir.Value(
        name=f"past_event.{site.id.removeprefix('layers.')}",
        shape=ir.Shape([batch, width]),
        type=ir.TensorType(ir.DataType.FLOAT),
    )
    model.graph.inputs.append(past)
    return past


def _constant(model: ir.Model, site: Site, fit: Fit, name: str) -> ir.Value | None:
    if name not in fit.tensors:
        return None
    return add_initializer(model, f"{site.id}.event_{name}", fit.tensors[name])


def _base(
    model: ir.Model, site: Site, fit: Fit, node: ir.Node, ports: list[str], centred: bool
) -> ir.Value | None:
    """(1 − α) W μ − α b; None where it is 0."""
    alpha = float(fit.attributes["alpha"])
    base = np.zeros(site.out_features, np.float32)
    if "product" in fit.tensors and not centred:
        base += np.float32(1 - alpha) * fit.tensors["product"]
    bias = _input(node, ports.index("bias")) if "bias" in ports else None
    if bias is not None:
        assert bias.const_value is not None
        base -= np.float32(alpha) * bias.const_value.numpy()
    return add_initializer(model, f"{site.id}.event_base", base) if base.any() else None


def _node(
    product: ir.Node,
    op_type: str,
    inputs: list[ir.Value | None],
    attributes: dict[str, int | float | str],
    outputs: int,
) -> ir.Node:
    while inputs[-1] is None:
        inputs.pop()
    kept = {k: v for k, v in product.metadata_props.items() if k in (LAYER, SITE)}
    return ir.node(
        op_type,
        inputs,
        attributes,
        domain=DOMAIN,
        name=f"{product.name}/{op_type}",
        num_outputs=outputs,
        metadata_props=kept,
    )


def _connect(
    model: ir.Model, site: Site, product: ir.Node, select: ir.Node, total: ir.Node
) -> None:
    """Puts both nodes into the graph; what read the product reads the sum."""
    model.graph.insert_before(product, select)
    model.graph.insert_after(product, total)
    output, (y, present) = product.outputs[0], total.outputs
    y.name, y.shape, y.type = output.name, output.shape, output.type
    y.metadata_props.update(output.metadata_props)
    for value, name in zip(select.outputs, ("delta", "mask", "plan", "reference", "started"),
                           strict=False):  # fmt: skip
        value.name = f"{site.id}/event_{name}"
    users = [use for use in output.uses() if use.node is not total]
    output.name = f"{site.id}/event_dy"
    output.shape = None
    for node, index in users:
        node.replace_input_with(index, y)
    past = total.inputs[1]
    assert past is not None
    assert past.name is not None
    present.name = present_of(past.name)
    present.shape, present.type = past.shape, past.type
    model.graph.outputs.append(present)
