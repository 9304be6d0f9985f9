"""Edits of a graph at a site: find its node, replace it, insert nodes, add constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tamiz.api.metadata import DOMAIN, LAYER, OPSET_VERSION, SITE, TECHNIQUE, VERSION
from tamiz.api.site import Site
from tamiz.files.errors import TamizError

#: What a node inherits from the one that it replaces.
_CARRIED = (LAYER, SITE, TECHNIQUE, VERSION)


@dataclass(frozen=True)
class Linear:
    """A linear site (or an embedding's Gather) as it stands in the graph.

    Attributes:
        node: The MatMul, Gemm or Gather.
        input: x ``[..., K]``; of a Gather the ids ``[...]``.
        weight: The constant weight as stored (`Site.transposed` says how).
        bias: Constant ``[N]`` that is added to the product, None where there is none.
        output: y ``[..., N]``, after the bias; of a Gather ``[..., K]``.
    """

    node: ir.Node
    input: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    output: ir.Value


def constant_weight(value: ir.Value | None) -> tuple[ir.Value, bool] | None:
    """Follows `value` through Identity and 2-D Transpose to the initializer it comes from.

    Returns:
        The initializer, and whether it reaches `value` transposed; None if `value` is computed.
    """
    transposed = False
    while value is not None and (node := value.producer()) is not None:
        if node.op_type == "Transpose" and node.domain == "":
            perm = node.attributes.get("perm")
            if perm is not None and list(perm.as_ints()) != [1, 0]:
                return None
            transposed = not transposed
        elif node.op_type != "Identity" or node.domain != "":
            return None
        value = node.inputs[0]
    if value is None or not value.is_initializer() or value.const_value is None:
        return None
    return value, transposed


def find_node(model: ir.Model, site: Site) -> ir.Node:
    """The node that stands at `site` by now.

    Raises:
        TamizError: If the graph has no such node.
    """
    node = next((n for n in model.graph if n.name == site.node), None)
    if node is None:
        raise TamizError(f"site {site.id}: the graph has no node {site.node!r}")
    return node


def find_linear(model: ir.Model, site: Site) -> Linear:
    """The linear or embedding at `site`.

    Raises:
        TamizError: If the graph has no such node, or the node has no constant weight.
    """
    return linear_at(find_node(model, site))


def linear_at(node: ir.Node) -> Linear:
    """The linear or embedding that `node`, a MatMul, Gemm or Gather, computes.

    Raises:
        TamizError: If the node has no constant weight.
    """
    data, weights = (1, 0) if node.op_type == "Gather" else (0, 1)
    source = constant_weight(node.inputs[weights])
    x = node.inputs[data]
    if source is None or x is None:
        raise TamizError(f"node {node.name!r} ({node.op_type}): expected a constant weight")
    output = node.outputs[0]
    if node.op_type == "Gemm":
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        return Linear(node, x, source[0], bias, output)
    add = _bias_add(output) if node.op_type == "MatMul" else None
    if add is None:
        return Linear(node, x, source[0], None, output)
    bias = add.inputs[0] if add.inputs[1] is output else add.inputs[1]
    return Linear(node, x, source[0], bias, add.outputs[0])


def _bias_add(product: ir.Value) -> ir.Node | None:
    """The Add that alone consumes `product` and adds a constant [N] to it."""
    consumers = product.consumers()
    if len(consumers) != 1 or product.is_graph_output() or consumers[0].op_type != "Add":
        return None
    add = consumers[0]
    other = add.inputs[0] if add.inputs[1] is product else add.inputs[1]
    if other is None or not other.is_initializer() or other.shape is None:
        return None
    if product.shape is None or len(other.shape) != 1 or other.shape[0] != product.shape[-1]:
        return None
    return add


def weight_array(linear: Linear, site: Site) -> np.ndarray:
    """The weight of `site` as float32 ``[N, K]``.

    Returns:
        A read-only view of the mapped file where the weight is external; it may be strided.
    """
    assert linear.weight.const_value is not None
    array = np.asarray(linear.weight.const_value.numpy(), dtype=np.float32)
    return array if site.transposed else array.T


def add_initializer(model: ir.Model, name: str, array: np.ndarray) -> ir.Value:
    """Adds a constant under `name`; where the name is taken, returns the constant it names.

    Sites that share a weight (a tied head and embedding) share the packed constant this way, so
    the name must say everything that the contents depend on.
    """
    if name in model.graph.initializers:
        return model.graph.initializers[name]
    value = ir.Value(
        name=name,
        shape=ir.Shape(array.shape),
        type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        const_value=ir.tensor(array, name=name),
    )
    model.graph.register_initializer(value)
    return value


def replace(
    model: ir.Model,
    at: ir.Node,
    outputs: Sequence[ir.Value | None],
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, int | float | str | Sequence[int]],
    name: str | None = None,
    domain: str = DOMAIN,
) -> ir.Node:
    """Puts one node into the graph, and removes what nothing needs then.

    Args:
        model: The model; the opset import of the domain `tamiz` is added.
        at: The new node stands after this one, and takes its name, its layer, and the signatures
            of techniques that have rewritten it before.
        outputs: The old values that the new node's outputs replace, in order; they keep their
            names, types and shapes, also as outputs of the graph. None stands for an output
            that is not wanted.
        op_type: Op of the new node.
        inputs: Inputs of the new node; None for an omitted one.
        attributes: Attributes of the new node.
        name: Name of the new node, if not that of `at`.
        domain: Domain of the op; '' is ONNX's own.

    Returns:
        The new node.
    """
    new_values = [_successor(old) for old in outputs]
    node = ir.node(
        op_type,
        inputs,
        dict(attributes),
        domain=domain,
        name=name or at.name,
        outputs=new_values,
        metadata_props={k: v for k, v in at.metadata_props.items() if k in _CARRIED},
    )
    model.graph.insert_after(at, node)
    if domain == DOMAIN:
        model.graph.opset_imports[DOMAIN] = OPSET_VERSION
    for old, new in zip(outputs, new_values, strict=True):
        if old is not None:
            old.replace_all_uses_with(new, replace_graph_outputs=True)
    _remove_unused(model, [v.producer() for v in outputs if v is not None])
    return node


def _successor(old: ir.Value | None) -> ir.Value:
    """A value that is to replace another one; an unused output where there is none."""
    if old is None:
        return ir.Value(name="")
    return ir.Value(
        name=old.name, type=old.type, shape=old.shape, metadata_props=old.metadata_props
    )


def insert(
    model: ir.Model,
    before: ir.Node,
    name: str,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, int | float | str | Sequence[int]],
    outputs: Sequence[ir.Value],
) -> ir.Node:
    """Adds a node of the domain `tamiz` before another one, whose layer and site it gets.

    The caller gives its outputs to whom they are for.
    """
    node = ir.node(
        op_type,
        inputs,
        dict(attributes),
        domain=DOMAIN,
        name=name,
        outputs=list(outputs),
        metadata_props={k: v for k, v in before.metadata_props.items() if k in (LAYER, SITE)},
    )
    model.graph.insert_before(before, node)
    model.graph.opset_imports[DOMAIN] = OPSET_VERSION
    return node


def _remove_unused(model: ir.Model, candidates: list[ir.Node | None]) -> None:
    """Removes those of `candidates` that nothing uses, and then what only they used."""
    while candidates:
        node = candidates.pop()
        if node is None or node.graph is not model.graph:
            continue
        if any(v.uses() or v.is_graph_output() for v in node.outputs):
            continue
        candidates += [v.producer() for v in node.inputs if v is not None]
        model.graph.remove(node, safe=True)


def replace_linear(
    model: ir.Model,
    linear: Linear,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, int | float | str | Sequence[int]],
) -> ir.Node:
    """Replaces a linear and the bias Add it absorbs by one node of the domain `tamiz`."""
    return replace(model, linear.node, [linear.output], op_type, inputs, attributes)
