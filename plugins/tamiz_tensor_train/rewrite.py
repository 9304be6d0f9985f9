r"""Puts the product with a train where the dense products stood: four ONNX nodes a core.

From the last core to the first, with P = m_1 … m_{k−1} and Q = n_{k+1} … n_d:

    z [P, m_k, Q, r_k] → [P, Q, m_k r_k] · G_k [m_k r_k, r_{k−1} n_k] → [P, Q, r_{k−1}, n_k]

The dimension that the next core contracts is inside P, so a Reshape and a Transpose come between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tamiz.api import Fit, FitError, GraphEditor, Linear, Site

if TYPE_CHECKING:
    import onnx_ir as ir


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Replaces the product at `site`.

    Raises:
        FitError: The rank of the input is not known.
    """
    graph = GraphEditor(model)
    linear = graph.linear(site)
    if linear.input.shape is None:
        raise FitError("the rank of its input is not known")
    chain = _Chain(graph, site, linear, len(linear.input.shape) - 1)
    cores = [fit.tensors[f"core.{index}"] for index in range(len(fit.tensors))]
    p, q, done = site.in_features, 1, (1, 1)  # done: n and r of the core before
    for index, core in reversed(list(enumerate(cores))):
        r_out, n, m, r_in = core.shape
        p //= m
        # [P, m_k, Q, r_k, n_{k+1}] → [P, n_{k+1}, Q, m_k, r_k]
        chain.reshape(p, m, q, r_in, done[0])
        chain.transpose(0, 4, 2, 1, 3)
        q *= done[0]
        chain.reshape(p * q, m * r_in)
        matrix = core.transpose(2, 3, 0, 1).reshape(m * r_in, r_out * n)
        chain.add("MatMul", chain.constant(f"core.{index}", matrix))
        done = (n, r_out)
    chain.reshape(q, done[0])
    chain.transpose(1, 0)
    return chain.finish()


class _Chain:
    """Nodes one after the other; the first `leading` dimensions of their values are dynamic."""

    def __init__(self, graph: GraphEditor, site: Site, linear: Linear, leading: int) -> None:
        self.graph, self.site, self.linear, self.leading = graph, site, linear, leading
        self.nodes: list[ir.Node] = []
        self.value = linear.input

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        return self.graph.constant(f"{self.site.id}.{name}", np.ascontiguousarray(array))

    def _shape(self, *sizes: int) -> ir.Value:
        name = "shape." + "x".join(map(str, sizes))
        return self.constant(name, np.array([0] * self.leading + list(sizes), np.int64))

    def add(self, op: str, *others: ir.Value, **attributes: list[int]) -> None:
        name = f"{self.site.node}.{len(self.nodes)}"
        inputs, output = [self.value, *others], self.graph.value(f"{name}.output", "FLOAT")
        at = self.linear.node
        node = self.graph.insert(at, name, op, inputs, attributes, [output], domain="")
        self.nodes.append(node)
        self.value = output

    def reshape(self, *sizes: int) -> None:
        """To ``[leading…, *sizes]``; 0 copies a dimension."""
        self.add("Reshape", self._shape(*sizes))

    def transpose(self, *order: int) -> None:
        """Permutes the dimensions after the leading ones."""
        perm = [*range(self.leading), *(self.leading + axis for axis in order)]
        self.add("Transpose", perm=perm)

    def finish(self) -> list[ir.Node]:
        """To ``[leading…, N]`` under the name of the product, after the bias."""
        linear, inputs = self.linear, [self.value, self._shape(self.site.out_features)]
        op = "Reshape"
        if linear.bias is not None:
            self.add(op, inputs[1])
            op, inputs = "Add", [self.value, linear.bias]
        return [*self.nodes, self.graph.replace(linear, op, inputs, {}, domain="")]
