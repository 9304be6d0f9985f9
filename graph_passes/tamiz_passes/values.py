"""Reading a graph backwards: constants, producers, and what lies behind layout changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import onnx_ir as ir

#: Ops that move, copy or regroup the elements of their first input.
LAYOUT = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Expand", "Slice", "Split", "Identity"}
)
#: The same, and what only changes the type of a number.
LAYOUT_OR_CAST = LAYOUT | {"Cast"}


#: Dimensions that the ops take (`kMaxRank` of their library).
_MAX_RANK = 8


class Refusal(Exception):
    """A structure that a pass looked for, and why it is not there. One sentence, no full stop."""

    @property
    def sentence(self) -> str:
        """The reason as a note has it: with a capital letter and a full stop."""
        reason = str(self)
        return f"{reason[0].upper()}{reason[1:]}."


class NotRunError(Refusal):
    """A part of a graph that ONNX Runtime does not run at a batch and length."""


def producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node of the standard domain that computes `value`, if it is one of `op_types`."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.domain == "" and node.op_type in op_types else None


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The constant that `value` is; None if it is computed."""
    if value is None or value.is_graph_input() or value.const_value is None:
        return None
    return value.const_value.numpy()


def scalar(value: ir.Value | None) -> float | None:
    """The one element of the constant that `value` is; None if it is not such a constant."""
    if value is None or value.const_value is None or value.const_value.size != 1:
        return None
    array = constant(value)
    return None if array is None else float(array.reshape(()))


def is_scalar(value: ir.Value) -> bool:
    """Whether a value is known to have one element."""
    return value.shape is not None and all(d == 1 for d in value.shape)


def same_shape(a: ir.Value, b: ir.Value) -> bool:
    """Whether two values are known to have the same shape; what is not known is not equal."""
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return False
    return all(i == j and _is_known(i) for i, j in zip(a.shape, b.shape, strict=True))


def _is_known(dim: int | ir.SymbolicDim) -> bool:
    """Whether a dimension is a number, or has the name of one."""
    return isinstance(dim, int) or dim.value is not None


def shown(value: ir.Value) -> str:
    """A shape for a message."""
    if value.shape is None:
        return "of unknown shape"
    return "[" + ", ".join(str(d) if _is_known(d) else "?" for d in value.shape) + "]"


def scalar_for(x: ir.Value, value: ir.Value | None) -> float | None:
    """The number that a constant is, if an elementwise op with it leaves the shape of x.

    None if the value is computed or holds several numbers, or if its rank may be above that of x.
    """
    number = scalar(value)
    if number is None or value is None or value.const_value is None or x.shape is None:
        return None
    return number if len(value.const_value.shape) <= len(x.shape) else None


def other_operand(node: ir.Node, value: ir.Value) -> ir.Value:
    """The operand of a binary node that is not `value`."""
    left, right = operands(node)
    return right if left is value else left


def rank(value: ir.Value) -> int | None:
    """Number of dimensions; None if unknown."""
    return None if value.shape is None else len(value.shape)


def too_deep(value: ir.Value | None) -> str | None:
    """Says that a value has more dimensions than the ops take; None if it is not known to."""
    dimensions = rank(value) if value is not None else None
    if value is None or dimensions is None or dimensions <= _MAX_RANK:
        return None
    return f"{value.name} has {dimensions} dimensions, expected at most {_MAX_RANK}."


def last_dim(value: ir.Value) -> int | None:
    """Length of the last dimension; None if it is not a known number."""
    if value.shape is None or len(value.shape) == 0:
        return None
    dim = value.shape[-1]
    return dim if isinstance(dim, int) else None


def operands(node: ir.Node) -> list[ir.Value]:
    """The inputs of a node, without the optional ones that are omitted."""
    return [value for value in node.inputs if value is not None]


def before(value: ir.Value) -> list[ir.Value]:
    """What a value is computed from."""
    node = value.producer()
    return [] if node is None else operands(node)


def walk(
    values: Iterable[ir.Value], behind: Callable[[ir.Value], Iterable[ir.Value]]
) -> Iterator[ir.Value]:
    """Each of `values` and what lies behind them, once; `behind` gives what a value is made of."""
    seen: set[ir.Value] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if value not in seen:
            seen.add(value)
            yield value
            stack += behind(value)


def name_in_scope(node: ir.Node, name: str) -> str:
    """`name` beside `node`: ``/model/layers.0/mlp/Mul`` gives ``/model/layers.0/mlp/<name>``."""
    scope = (node.name or "").rpartition("/")[0]
    return f"{scope}/{name}" if scope else f"{node.name}.{name}"
