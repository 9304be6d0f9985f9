"""The editor of graphs: find what a site is, replace it, insert nodes, add constants and states.

Ports of the domain `tamiz` have names, as its ops declare them (docs/reference/ops.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import numpy as np

import tamiz_ops
from tamiz.api.linear import Linear, linear_at
from tamiz.api.ports import has_input
from tamiz.api.site import Site
from tamiz.api.technique import Fit, FitError, RewriteFunction
from tamiz.files.errors import TamizError
from tamiz.interface.metadata import DOMAIN, LAYER, OPSET_VERSION, SITE, TECHNIQUE, VERSION
from tamiz.interface.states import PAST, present_of
from tamiz.interface.switches import switch_input

if TYPE_CHECKING:
    import onnx_ir as ir

    Attributes = Mapping[str, int | float | str | Sequence[int]]
    #: Values by the names of ports, or in their order; None for one that is omitted.
    Inputs = Mapping[str, "ir.Value | None"] | Sequence["ir.Value | None"]

#: What a node inherits from the one that it replaces.
_CARRIED = (LAYER, SITE, TECHNIQUE, VERSION)


class GraphEditor:
    """Edits one model in place.

    Args:
        model: The model.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model

    def node(self, site: Site) -> ir.Node:
        """The node at `site`, whichever op it is after the techniques before.

        Raises:
            TamizError: The graph has no such node.
        """
        node = next((n for n in self.model.graph if n.name == site.node), None)
        if node is None:
            raise TamizError(f"site {site.id}: the graph has no node {site.node!r}")
        return node

    def linear(self, site: Site) -> Linear:
        """The dense linear or embedding at `site`.

        Raises:
            TamizError: The graph has no such node, or the node has no constant weight.
        """
        return linear_at(self.node(site))

    def op(self, site: Site, op_type: str) -> ir.Node:
        """The op of the domain `tamiz` at `site`.

        Raises:
            TamizError: The graph has no such node.
            FitError: It is another op.
        """
        node = self.node(site)
        if (node.domain, node.op_type) != (DOMAIN, op_type):
            raise FitError(f"the op of its weights is {node.op_type}, expected {op_type}")
        return node

    def masked(self, site: Site) -> ir.Node:
        """The op of the domain `tamiz` at `site`, which takes a mask on its inputs.

        Raises:
            TamizError: The graph has no such node.
            FitError: It takes no mask.
        """
        node = self.node(site)
        if not (has_input(node, "mask") and has_input(node, "x")):
            raise FitError(f"{node.op_type}, the op of its weights, takes no mask")
        return node

    def attention(self, site: Site) -> ir.Node:
        """The tamiz.Attention at `site`.

        Raises:
            FitError: The graph has another node there, as the attention was not recognised.
        """
        node = next((n for n in self.model.graph if n.name == site.node), None)
        if node is None or (node.domain, node.op_type) != (DOMAIN, "Attention"):
            found = "no node" if node is None else node.op_type
            raise FitError(
                f"its attention was not recognised: found {found}, expected tamiz.Attention"
            )
        return node

    def input(self, name: str) -> ir.Value | None:
        """The input of the graph that is called `name`; None where there is none."""
        return next((v for v in self.model.graph.inputs if v.name == name), None)

    def value(self, name: str, like: ir.Value | str | None = None) -> ir.Value:
        """A new value for an output of a new node.

        Args:
            name: Its name.
            like: Its type and shape are those of this value; or the name of its type alone, such
                as ``"UINT8"``.
        """
        import onnx_ir as ir

        if isinstance(like, str):
            return ir.Value(name=name, type=ir.TensorType(ir.DataType[like]))
        if like is None:
            return ir.Value(name=name)
        return ir.Value(name=name, type=like.type, shape=like.shape)

    def constant(self, label: str, array: np.ndarray) -> ir.Value:
        """A constant with these contents.

        A constant is told by its contents, not by its label, so sites share one only where they
        would store the same bytes: a tied head and embedding do, a weight that is used in both
        orientations does not. The contents depend on more than a label could say: weight, format,
        orientation, settings, and the statistics that a fit reads.

        Args:
            label: Its name, where no other value of the graph has that name and other contents;
                else the label with a number.
            array: Its contents.
        """
        import onnx_ir as ir

        initializers = self.model.graph.initializers
        array = np.asarray(array)
        taken: set[str] | None = None
        for name in chain([label], (f"{label}.{number}" for number in count(2))):
            if name in initializers:
                if _holds(initializers[name], array):
                    return initializers[name]
                continue
            taken = _value_names(self.model) if taken is None else taken
            if name not in taken:
                break
        value = ir.Value(
            name=name,
            shape=ir.Shape(array.shape),
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            const_value=ir.tensor(array, name=name),
        )
        self.model.graph.register_initializer(value)
        return value

    def switch(self, technique: str) -> ir.Value:
        """The graph input that switches a technique off in a run: int64 ``[1]``, 0 by default."""
        name = switch_input(technique)
        value = self.input(name)
        if value is None:
            value = self.constant(name, np.zeros(1, np.int64))
            self.model.graph.inputs.append(value)
        return value

    def connect(self, node: ir.Node, port: str, value: ir.Value | None) -> None:
        """Gives an op of the domain `tamiz` another input."""
        index = tamiz_ops.ports(node.op_type).inputs[port]
        node.resize_inputs(max(len(node.inputs), index + 1))
        node.replace_input_with(index, value)

    def set(self, node: ir.Node, attributes: Attributes) -> None:
        """Sets attributes of a node."""
        from onnx_ir.convenience import convert_attribute

        for name, value in attributes.items():
            node.attributes[name] = convert_attribute(name, value)

    def replace(
        self,
        at: Linear | ir.Node,
        op_type: str,
        inputs: Inputs,
        attributes: Attributes,
        outputs: Sequence[ir.Value | None] | None = None,
        *,
        name: str | None = None,
        domain: str = DOMAIN,
    ) -> ir.Node:
        """Puts one node into the graph, and removes what nothing needs then.

        Args:
            at: The linear with the Add of its bias, or the node, that the new node replaces. The
                new node comes after it, and takes its name, its layer, and the signatures of
                techniques that have rewritten it before.
            op_type: Op of the new node.
            inputs: Its inputs, by name or in order.
            attributes: Its attributes.
            outputs: The old values that its outputs replace, in order; they keep their names,
                types and shapes, also as outputs of the graph. None omits an
                output. By default the output of the linear, or the first one of the node.
            name: Name of the new node, if not that of the old one.
            domain: Domain of the op; '' is ONNX's own.

        Returns:
            The new node.
        """
        import onnx_ir as ir

        node = at.node if isinstance(at, Linear) else at
        if outputs is None:
            outputs = [at.output if isinstance(at, Linear) else at.outputs[0]]
        new_values = [_successor(old) for old in outputs]
        new = ir.node(
            op_type,
            _in_order(op_type, inputs),
            dict(attributes),
            domain=domain,
            name=name or node.name,
            outputs=new_values,
            metadata_props={k: v for k, v in node.metadata_props.items() if k in _CARRIED},
        )
        self.model.graph.insert_after(node, new)
        self._import(domain)
        for old, successor in zip(outputs, new_values, strict=True):
            if old is not None:
                old.replace_all_uses_with(successor, replace_graph_outputs=True)
        self._remove_unused([v.producer() for v in outputs if v is not None])
        return new

    def insert(
        self,
        at: ir.Node,
        name: str,
        op_type: str,
        inputs: Inputs,
        attributes: Attributes,
        outputs: Sequence[ir.Value],
        *,
        after: bool = False,
        domain: str = DOMAIN,
    ) -> ir.Node:
        """Adds a node before another one, or after it, whose layer and site it gets.

        The caller connects its outputs.

        Returns:
            The new node.
        """
        import onnx_ir as ir

        node = ir.node(
            op_type,
            _in_order(op_type, inputs),
            dict(attributes),
            domain=domain,
            name=name,
            outputs=list(outputs),
            metadata_props={k: v for k, v in at.metadata_props.items() if k in (LAYER, SITE)},
        )
        graph = self.model.graph
        (graph.insert_after if after else graph.insert_before)(at, node)
        self._import(domain)
        return node

    def follow(self, old: ir.Value, new: ir.Value, renamed: str) -> None:
        """Lets what read `old` read `new`, which is computed from it.

        Args:
            old: Computed as before; of no known shape now.
            new: Takes the name, type and shape of `old`, and all other uses.
            renamed: The new name of `old`.
        """
        users = [use for use in old.uses() if use.node is not new.producer()]
        new.name, new.shape, new.type = old.name, old.shape, old.type
        new.metadata_props.update(old.metadata_props)
        old.name, old.shape = renamed, None
        for node, index in users:
            node.replace_input_with(index, new)

    def add_past(self, name: str, shape: Sequence[Any]) -> ir.Value:
        """A new float32 input of the graph, ``past_NAME``: what is kept from run to run."""
        import onnx_ir as ir

        kind = ir.TensorType(ir.DataType.FLOAT)
        past = ir.Value(name=f"{PAST}{name}", shape=ir.Shape(shape), type=kind)
        self.model.graph.inputs.append(past)
        return past

    def add_present(self, node: ir.Node, port: str, past: ir.Value, shape: Sequence[Any]) -> None:
        """Makes what a node gives at a port an output of the graph, the state after `past`."""
        import onnx_ir as ir

        index = tamiz_ops.ports(node.op_type).outputs[port]
        node.resize_outputs(max(len(node.outputs), index + 1))
        present = node.outputs[index]
        present.name = present_of(past.name or "")
        present.shape, present.type = ir.Shape(shape), past.type
        self.model.graph.outputs.append(present)

    def _import(self, domain: str) -> None:
        if domain == DOMAIN:
            self.model.graph.opset_imports[DOMAIN] = OPSET_VERSION

    def _remove_unused(self, candidates: list[ir.Node | None]) -> None:
        """Removes those of `candidates` that nothing uses, and then what only they used."""
        graph = self.model.graph
        while candidates:
            node = candidates.pop()
            if node is None or node.graph is not graph:
                continue
            if any(v.uses() or v.is_graph_output() for v in node.outputs):
                continue
            candidates += [v.producer() for v in node.inputs if v is not None]
            graph.remove(node, safe=True)


def replace_product(op_type: str) -> RewriteFunction:
    """A rewrite that puts an op of the domain `tamiz` in place of the product at a site.

    Each tensor of the fit is the op's input of that name. An op with an input ``dense`` gets the
    dense weight as its fallback where that is not stripped.
    """
    return partial(_replace_product, op_type)


def _replace_product(op_type: str, site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    graph = GraphEditor(model)
    linear = graph.linear(site)
    packed = {role: graph.constant(f"{site.id}.{role}", fit.tensors[role]) for role in fit.tensors}
    inputs = {"x": linear.input, **packed, "bias": linear.bias}
    attributes = dict(fit.attributes)
    if "dense" in tamiz_ops.ports(op_type).inputs and not fit.strip and site.format is None:
        inputs["dense"] = linear.weight
        attributes["dense_is_kn"] = int(not site.transposed)
    return [graph.replace(linear, op_type, inputs, attributes)]


def _holds(value: ir.Value, array: np.ndarray) -> bool:
    """Whether a value is a constant with the type, shape and bytes of `array`."""
    tensor = value.const_value
    if tensor is None or value.is_graph_input() or tuple(tensor.shape.numpy()) != array.shape:
        return False
    stored = tensor.numpy()
    if stored.dtype != array.dtype:
        return False
    # Bytes, not numbers: NaN equals itself, and -0.0 is another constant than 0.0.
    return np.ascontiguousarray(stored).tobytes() == np.ascontiguousarray(array).tobytes()


def _value_names(model: ir.Model) -> set[str]:
    """Names of all values of the graph, and of the graphs in it."""
    names: set[str] = set()
    for graph in model.graphs():
        names.update(value.name or "" for value in graph.inputs)
        names.update(graph.initializers)
    names.update(v.name or "" for node in model.graph.all_nodes() for v in node.outputs)
    return names


def _in_order(op_type: str, inputs: Inputs) -> list[ir.Value | None]:
    """Values in the order of the ports, up to the last one that is named."""
    if not isinstance(inputs, Mapping):
        return list(inputs)
    ports = tamiz_ops.ports(op_type).inputs
    if unknown := inputs.keys() - ports.keys():
        raise ValueError(f"{op_type} has no input {min(unknown)!r}; it has {', '.join(ports)}")
    named = {ports[name]: value for name, value in inputs.items()}
    return [named.get(index) for index in range(max(named, default=-1) + 1)]


def _successor(old: ir.Value | None) -> ir.Value:
    """A value that is to replace another one; an unused output where there is none."""
    import onnx_ir as ir

    if old is None:
        return ir.Value(name="")
    return ir.Value(
        name=old.name, type=old.type, shape=old.shape, metadata_props=old.metadata_props
    )
