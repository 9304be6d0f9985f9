"""Sinks of attention: a score of each query head that joins the sum of its softmax.

p = softmax(concat(scores, sinks)),  of which the last column has no value
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tamiz_passes.values import Refusal, constant, operands, producer

#: Ops that keep the numbers in their order.
_KEEPS_ORDER = ("Reshape", "Unsqueeze", "Expand", "Cast", "Identity")


@dataclass(frozen=True)
class Sinks:
    """The sinks of one attention.

    Attributes:
        value: The constant that holds them.
        numbers: One for each query head, or one for all.
    """

    value: ir.Value | None
    numbers: np.ndarray

    def of_heads(self, count: int) -> np.ndarray:
        """``float32 [count]``.

        Raises:
            Refusal: There are fewer, or more.
        """
        if self.numbers.size not in (1, count):
            raise Refusal(f"there are {self.numbers.size} sinks, expected {count}")
        return np.broadcast_to(self.numbers.ravel(), count).astype(np.float32)


def constant_sinks(value: ir.Value) -> Sinks:
    """The sinks that a value is, or that are spread over batch and queries in it.

    Raises:
        Refusal: They are computed.
    """
    while (numbers := constant(value)) is None:
        node = producer(value, *_KEEPS_ORDER)
        if node is None:
            raise Refusal("its sinks are computed, expected constants")
        value = operands(node)[0]
    return Sinks(value, numbers)


def scores_and_sinks(value: ir.Value) -> tuple[ir.Value, Sinks | None]:
    """The scores in the argument of a softmax, and the sinks beside them.

    The largest may have been subtracted, which changes no softmax.

    Raises:
        Refusal: The sinks are computed.
    """
    joined = producer(value, "Concat", "Sub")
    if joined is not None and joined.op_type == "Sub":
        before, most = operands(joined)
        largest = producer(most, "ReduceMax")
        if largest is None or operands(largest)[0] is not before:
            return value, None
        joined = producer(before, "Concat")
    if joined is None or len(joined.inputs) != 2:
        return value, None
    scores, column = operands(joined)
    return scores, constant_sinks(column)
