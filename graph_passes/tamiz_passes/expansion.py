"""Puts several standard nodes in place of one node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from tamiz.api import GraphEditor


class Expansion:
    """New nodes in place of an old one, which come right before it.

    Args:
        graph: The graph to change.
        node: The old node.
    """

    def __init__(self, graph: GraphEditor, node: ir.Node) -> None:
        self.graph = graph
        self.node = node
        self._count = 0

    def op(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: dict[str, Any] | None = None,
        like: ir.Value | None = None,
        *,
        domain: str = "",
    ) -> ir.Value:
        """Adds a node of one output, whose type and shape are those of `like`."""
        label = f"{self.node.name}.{self._count}"
        self._count += 1
        output = self.graph.value(label, like)
        self.graph.insert(
            self.node, f"{label}.{op_type}", op_type, inputs, attributes or {}, [output],
            domain=domain,
        )  # fmt: skip
        return output

    def number(self, name: str, value: float) -> ir.Value:
        """A constant of float32 without dimensions, which nodes share."""
        return self.graph.constant(name, np.array(value, np.float32))

    def finish(self, *pairs: tuple[ir.Value, ir.Value]) -> None:
        """Lets new values take the names and uses of outputs of the old node, which goes.

        What an output of the graph declares stays as it is, also where it declares no shape.
        """
        for old, new in pairs:
            name, kind, shape, declared = old.name, old.type, old.shape, old.is_graph_output()
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            old.name = None
            new.name, new.type = name, kind or new.type
            new.shape = shape if declared or shape is not None else new.shape
        self.graph.model.graph.remove(self.node, safe=True)
