"""The backward pass through a graph: which op knows its own, and the walk from a loss to the sites.

Values have the shapes of the graph. Only inputs that depend on a site count: masks, positions and
shapes do not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tamiz.interface.states import PAST
from tamiz.survey.backward import (
    attention,
    experts,
    fused,
    ops,
    products,
    recurrence,
    selective_scan,
    state_space,
)
from tamiz.survey.backward.node import Float, Gradients, UnknownOpError, Values

if TYPE_CHECKING:
    import onnx_ir as ir


class _Op(NamedTuple):
    """How the backward pass goes through an op.

    Attributes:
        back: Takes the node, the values and the gradient at each output; gives those at the inputs.
        reads: Inputs whose values it reads.
        needs_first: Whether the gradient at the first output must be there.
    """

    back: Callable[..., Gradients]
    reads: tuple[int, ...] = ()
    needs_first: bool = True


_OPS = {
    ("", "Add"): _Op(ops.add, (0, 1)),
    ("", "Concat"): _Op(ops.concat, tuple(range(16))),
    ("", "Conv"): _Op(ops.convolution, (1,)),
    ("", "Div"): _Op(ops.div, (0, 1)),
    ("", "Dropout"): _Op(ops.same),
    ("", "Erf"): _Op(ops.erf, (0,)),
    ("", "Expand"): _Op(ops.expand, (0,)),
    ("", "Flatten"): _Op(ops.reshaped, (0,)),
    ("", "Gather"): _Op(ops.stop, needs_first=False),
    ("", "GatherElements"): _Op(ops.gather_elements, (0, 1)),
    ("", "Gemm"): _Op(products.gemm),
    ("", "Identity"): _Op(ops.same),
    ("", "LayerNormalization"): _Op(ops.layer_norm, (0, 1)),
    ("", "MatMul"): _Op(products.matmul, (0, 1)),
    ("", "Mul"): _Op(ops.mul, (0, 1)),
    ("", "Neg"): _Op(ops.neg),
    ("", "Max"): _Op(ops.larger, (0, 1)),
    ("", "Pow"): _Op(ops.power, (0,)),
    ("", "ReduceMean"): _Op(ops.mean, (0, 1)),
    ("", "ReduceSum"): _Op(ops.total, (0, 1)),
    ("", "Relu"): _Op(ops.relu, (0,)),
    ("", "Reshape"): _Op(ops.reshaped, (0,)),
    ("", "ScatterElements"): _Op(ops.scatter_elements, (1,)),
    ("", "Sigmoid"): _Op(ops.sigmoid, (0,)),
    ("", "Slice"): _Op(ops.cut, (0, 1, 2, 3, 4)),
    ("", "Softmax"): _Op(ops.softmax, (0,)),
    ("", "Split"): _Op(ops.split, (0, 1), needs_first=False),
    ("", "Sqrt"): _Op(ops.root, (0,)),
    ("", "Squeeze"): _Op(ops.reshaped, (0,)),
    ("", "Sub"): _Op(ops.sub, (0, 1)),
    ("", "Tanh"): _Op(ops.tanh, (0,)),
    ("", "Tile"): _Op(ops.tile, (0,)),
    ("", "TopK"): _Op(ops.best, (0,)),
    ("", "Transpose"): _Op(ops.transpose),
    ("", "Unsqueeze"): _Op(ops.reshaped, (0,)),
    ("", "Where"): _Op(ops.choose, (0, 1, 2)),
    ("tamiz", "Attention"): _Op(attention.attention, (0, 1, 2, 3, 4)),
    ("tamiz", "BlockGather"): _Op(ops.stop, needs_first=False),
    ("tamiz", "BlockMatMul"): _Op(products.block_matmul),
    ("tamiz", "ExpertMatMul"): _Op(experts.expert_matmul, (0, 2)),
    ("tamiz", "ExpertRouter"): _Op(experts.expert_router, (0,), needs_first=False),
    ("tamiz", "ExpertSum"): _Op(experts.expert_sum, (0, 1, 2, 3)),
    ("tamiz", "GatedDeltaNet"): _Op(recurrence.gated_delta_net, (0, 1, 2, 3)),
    ("tamiz", "LastPositions"): _Op(fused.last_positions, (0,)),
    ("tamiz", "Mamba2"): _Op(state_space.mamba2, (0,)),
    ("tamiz", "RMSNorm"): _Op(fused.rms_norm, (0, 2), needs_first=False),
    ("tamiz", "Scale"): _Op(experts.scale, (0, 1)),
    ("tamiz", "SelectiveScan"): _Op(selective_scan.selective_scan, (0, 1, 2, 3, 4)),
    ("tamiz", "ShortConv"): _Op(selective_scan.short_conv, (0, 1, 2)),
    ("tamiz", "SwiGLU"): _Op(fused.swiglu, (0, 1)),
}
#: Ops whose outputs no loss depends on smoothly.
_STOPS = {"Shape", "Size", "ArgMax", "Equal", "Less", "Greater", "Not", "IsNaN"}
#: Ops of two operands; one that stands beside a number is not read for its shape.
_ELEMENTWISE = {"Add", "Sub", "Mul", "Div"}


class Visit(NamedTuple):
    """A node that the backward pass has gone through.

    Attributes:
        node: The node.
        outputs: Gradients at its outputs.
        inputs: Gradients at its inputs through this node alone.
    """

    node: ir.Node
    outputs: Gradients
    inputs: Gradients


class BackwardPass:
    """The backward pass through a graph to its sites."""

    def __init__(self, nodes: Sequence[ir.Node], sites: Collection[str]) -> None:
        """Finds what depends on the sites.

        Args:
            nodes: The graph's, in its order.
            sites: Names of the sites' nodes.
        """
        self._nodes = nodes
        self._dependent = dependent(nodes, sites)

    def wanted(self) -> list[str]:
        """Names of the values that `visits` reads."""
        read = (name for n in self._nodes if self._depends(n) for name in wanted(n))
        return list(dict.fromkeys(read))

    def visits(self, values: Values, output: str, gradient: Float) -> Iterator[Visit]:
        """Goes from a value back to the sites, the last node first.

        Args:
            values: What `wanted` names.
            output: Name of the value that the loss depends on.
            gradient: The gradient there.

        Raises:
            UnknownOpError: No backward pass is known through an op on the way.
        """
        at = {output: gradient}
        for node in reversed(self._nodes):
            given: Gradients = [at.pop(o.name or "", None) for o in node.outputs]
            if all(g is None for g in given):
                continue
            gradients: Gradients = []
            if self._depends(node) or products.has_weight(node):
                gradients = back(node, values, given)
            yield Visit(node, given, gradients)
            for value, g in zip(node.inputs, gradients, strict=False):
                if value is not None and value.name in self._dependent and g is not None:
                    before = at.get(value.name)
                    at[value.name] = g if before is None else before + g

    def _depends(self, node: ir.Node) -> bool:
        return any(v is not None and v.name in self._dependent for v in node.inputs)


def back(node: ir.Node, values: Values, given: Gradients) -> Gradients:
    """Gradients at the inputs of a node.

    Args:
        node: The node.
        values: What `wanted` names.
        given: Gradients at its outputs.

    Raises:
        UnknownOpError: No backward pass is known through it.
    """
    op = _OPS.get((node.domain, node.op_type))
    if op is None or (op.needs_first and given[0] is None):
        raise UnknownOpError(f"{node.op_type} {node.name}")
    return op.back(node, values, *given)


def wanted(node: ir.Node) -> list[str]:
    """Names of the values that the backward pass through a node reads; constants are not."""
    op = _OPS.get((node.domain, node.op_type))
    place = ops.number(node) if node.op_type in _ELEMENTWISE else None
    of_number = place is not None and (node.op_type != "Div" or place == 1)
    if op is None or of_number or products.has_weight(node):
        return []
    given = (node.inputs[i] for i in op.reads if i < len(node.inputs))
    return [
        v.name
        for v in given
        if v is not None and v.name and v.const_value is None and not v.name.startswith(PAST)
    ]


def dependent(nodes: Sequence[ir.Node], sites: Collection[str]) -> set[str]:
    """Names of the values that depend on a site.

    Args:
        nodes: In the order of the graph.
        sites: Names of the sites' nodes.
    """
    names: set[str] = set()
    for node in nodes:
        depends = node.name in sites or any(v is not None and v.name in names for v in node.inputs)
        if depends and node.op_type not in _STOPS:
            names.update(output.name for output in node.outputs if output.name is not None)
    return names
