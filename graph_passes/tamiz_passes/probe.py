"""Runs part of a graph on chosen inputs, to prove by its results what its structure suggests.

An exported mask or rotary table has as many shapes as there are exporters, but few meanings:
evaluating it decides which meaning it has, where matching every shape could not.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tamiz.api import constant_weight
from tamiz_passes.values import (
    LAYOUT,
    NotRunError,
    Refusal,
    last_dim,
    operands,
    producer,
    rank,
    walk,
)

MASK_INPUT = "attention_mask"
POSITION_INPUT = "position_ids"
#: Bytes of a tensor whose content `form` compares.
_SMALL = 4096


@dataclass(frozen=True)
class Case:
    """One input of a probe.

    Attributes:
        mask: attention_mask ``[B, P + S]``, int64.
        positions: position_ids ``[B, S]``, int64.
    """

    mask: np.ndarray
    positions: np.ndarray

    @property
    def batch(self) -> int:
        """B, the number of sequences."""
        return int(self.mask.shape[0])

    @property
    def length(self) -> int:
        """S, the number of new tokens."""
        return int(self.positions.shape[1])

    @property
    def past(self) -> int:
        """P, the number of cached tokens."""
        return int(self.mask.shape[1]) - self.length

    def counted(self) -> Case:
        """The same with positions P + i, as graphs count that have no input position_ids."""
        positions = np.arange(self.past, self.past + self.length)
        return Case(self.mask, np.tile(positions, (self.batch, 1)))


class Probe:
    """A part of a graph as an onnxruntime session.

    Args:
        model: The model.
        outputs: Values to compute.
        boundary: Values that a run is fed instead of computing them. Graph inputs need not be
            named; nor need activations ``[B, S, n]`` of which only the shape matters.

    Raises:
        Refusal: If the part reaches over the boundary into the weights of the model, or
            onnxruntime cannot load it.

    Attributes:
        inputs: What a run is fed.
    """

    def __init__(
        self, model: ir.Model, outputs: Sequence[ir.Value], boundary: Sequence[ir.Value] = ()
    ) -> None:
        import onnxruntime as ort

        self.inputs = [v for v in _leaves(outputs, boundary) if not v.is_initializer()]
        graph = ir.convenience.extract(model.graph, list(self.inputs), list(outputs))
        part = ir.external_data.load_to_model(ir.Model(graph, ir_version=model.ir_version))
        proto = ir.to_proto(part)
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        try:
            self._session = ort.InferenceSession(proto.SerializeToString(), options)
        except Exception as error:  # onnxruntime raises a class of its own for every status
            raise Refusal(f"onnxruntime cannot load it: {_first_line(error)}") from error

    def run(
        self,
        outputs: Sequence[ir.Value],
        case: Case,
        given: Mapping[ir.Value, np.ndarray] | None = None,
    ) -> list[np.ndarray]:
        """Computes `outputs` for `case`; every input that is not `given` is zero.

        Raises:
            NotRunError: If the part does not run at this batch and length.
        """
        given = given or {}
        feeds = {v.name: given[v] if v in given else _default_input(v, case) for v in self.inputs}
        try:
            return list(self._session.run([v.name for v in outputs], feeds))
        except Exception as error:
            raise NotRunError(
                f"it does not run with {case.length} tokens after {case.past}: {_first_line(error)}"
            ) from error


def form(
    values: Sequence[ir.Value], boundary: Sequence[ir.Value], free: Sequence[ir.Value] = ()
) -> tuple[Hashable, ...]:
    """What `values` are computed by up to `boundary`, without names.

    Values of equal form are the same function of their boundary, of the constants that are `free`,
    and of the graph's mask and positions.
    """
    numbers: dict[ir.Value, int] = {}

    def number(value: ir.Value | None) -> int | None:
        return None if value is None else numbers.setdefault(value, len(numbers))

    rows: list[Hashable] = [tuple(map(number, (*values, *boundary)))]
    done = 0
    while done < len(numbers):
        for value in list(numbers)[done:]:
            done += 1
            node = value.producer()
            if value in free:
                rows.append((value.dtype, str(value.shape)))
                continue
            if node is None or value in boundary:
                rows.append(_leaf_form(value))
                continue
            attributes = sorted((a.name, _attribute_form(a)) for a in node.attributes.values())
            called = (node.domain, node.op_type, node.outputs.index(value), tuple(attributes))
            if node.op_type == "Shape" and _is_activation(operands(node)[0]):
                rows.append((*called, _leaf_form(operands(node)[0])))
            else:
                rows.append((*called, tuple(map(number, node.inputs))))
    return tuple(rows)


def _leaf_form(value: ir.Value) -> Hashable:
    if value.const_value is not None:
        return _tensor_form(value.const_value)
    known = None
    if value.shape is not None:
        known = tuple(d if isinstance(d, int) else None for d in value.shape)
    name = value.name if value.name in (MASK_INPUT, POSITION_INPUT) else None
    return (name, value.dtype, known)


def _attribute_form(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR:
        return repr(_tensor_form(attribute.as_tensor()))
    if attribute.type in _GRAPH_ATTRIBUTES:
        return f"only {id(attribute)}"
    return repr(attribute.value)


def _tensor_form(tensor: ir.TensorProtocol) -> Hashable:
    """Large tensors are equal to themselves only."""
    content = tensor.tobytes() if tensor.nbytes <= _SMALL else id(tensor)
    return (tensor.dtype, tuple(tensor.shape.numpy()), content)


def integers_behind(values: Sequence[ir.Value], boundary: Sequence[ir.Value]) -> set[int]:
    """Absolute values of the integer constants that `values` depend on up to `boundary`."""
    return {
        int(n)
        for value in _leaves(values, boundary)
        if value.dtype == ir.DataType.INT64 and value.const_value is not None
        for n in np.abs(value.const_value.numpy()).reshape(-1)
    }


def _leaves(outputs: Sequence[ir.Value], boundary: Sequence[ir.Value]) -> list[ir.Value]:
    """What `outputs` are computed from: `boundary`, graph inputs, constants, and shapes.

    Raises:
        Refusal: They are computed from weights of the model.
    """
    try:
        return _found(outputs, boundary)
    except Refusal:
        shaped = _shaped(outputs, boundary)
        if not shaped:
            raise
        return _found(outputs, [*boundary, *shaped])


def _found(outputs: Sequence[ir.Value], boundary: Sequence[ir.Value]) -> list[ir.Value]:
    found: dict[ir.Value, None] = {}

    def behind(value: ir.Value) -> list[ir.Value]:
        node = value.producer()
        if node is None or value in boundary or value in found:
            found[value] = None
            return []
        _check_inside(node)
        sources = operands(node)
        if node.op_type == "Shape":
            found.update(dict.fromkeys(v for v in sources if _is_activation(v)))
        return sources

    for _ in walk(outputs, behind):
        pass
    return list(found)


def _shaped(outputs: Sequence[ir.Value], boundary: Sequence[ir.Value]) -> list[ir.Value]:
    """Activations ``[B, S, n]`` of which `outputs` read only the shape, as that of heads of them.

    The layers of T5 behind the first one read the length of a text so.
    """
    shaped: dict[ir.Value, None] = {}

    def behind(value: ir.Value) -> list[ir.Value]:
        node = value.producer()
        if node is None or value in boundary:
            return []
        if node.op_type != "Shape":
            return operands(node)
        source, others = operands(node)[0], []
        while (layout := producer(source, *LAYOUT)) is not None and not _is_activation(source):
            source, *sizes = operands(layout)
            others += sizes
        if not _is_activation(source):
            return operands(node)
        shaped[source] = None
        return others

    read = set(walk(outputs, behind))
    return [value for value in shaped if value not in read]


_GRAPH_ATTRIBUTES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


#: Ops of ONNX Runtime that a probe runs.
_RUN = frozenset({"GroupQueryAttention", "MultiHeadAttention", "RotaryEmbedding"})


def _check_inside(node: ir.Node) -> None:
    if node.domain != "" and not (node.domain == "com.microsoft" and node.op_type in _RUN):
        raise Refusal(f"it depends on {node.name} ({node.domain}.{node.op_type})")
    if any(a.type in _GRAPH_ATTRIBUTES for a in node.attributes.values()):
        raise Refusal(f"it depends on {node.name} ({node.op_type}), a branch or a loop")
    if node.op_type == "Gather" and _is_counted(operands(node)[1]):
        return
    sources = [constant_weight(v) for v in node.inputs]
    weights = [source[0] for source in sources if source is not None]
    if node.op_type in ("MatMul", "Gemm", "Gather") and any(rank(w) == 2 for w in weights):
        raise Refusal(f"it depends on {node.name} ({node.op_type} with a weight)")


def _is_counted(index: ir.Value) -> bool:
    """Whether an index depends on shapes only, as the distance of tokens does."""

    def behind(value: ir.Value) -> Sequence[ir.Value]:
        node = value.producer()
        return () if node is None or node.op_type == "Shape" else operands(node)

    def given(value: ir.Value) -> bool:
        return value.is_graph_input() or value.const_value is None

    return not any(v.producer() is None and given(v) for v in walk([index], behind))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200]


def _is_activation(value: ir.Value) -> bool:
    return (
        value.dtype == ir.DataType.FLOAT
        and rank(value) == 3
        and last_dim(value) is not None
        and not value.is_graph_input()
    )


def _default_input(value: ir.Value, case: Case) -> np.ndarray:
    if value.name == MASK_INPUT:
        return case.mask
    if value.name == POSITION_INPUT:
        return case.positions
    assert value.shape is not None
    assert value.dtype is not None
    known = [d if isinstance(d, int) else 1 for d in value.shape]
    if len(known) != 4:
        leading = [case.batch, case.length]
    elif isinstance(value.shape[2], int):  # an image
        leading = [case.batch]
    else:
        leading = [case.batch, known[1], case.past]
    return np.zeros([*leading, *known[len(leading) :]], value.dtype.numpy())
