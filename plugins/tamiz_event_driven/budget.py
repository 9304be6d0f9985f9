"""Shares the budget of a step over the products that event-driven wraps."""

from __future__ import annotations

import onnx_ir as ir

from tamiz.api import DOMAIN, GraphEditor, GraphPass, Phase


class ShareBudget(GraphPass):
    """Gives each EventSelect, whose ``budget_us`` is the whole step's, its part by k · n."""

    name = "share-event-budget"
    phase = Phase.FUSE
    provides = frozenset({"ops-final"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        nodes = [n for n in model.graph if (n.domain, n.op_type) == (DOMAIN, "EventSelect")]
        bounded = [n for n in nodes if n.attributes["budget_us"].as_float() >= 0]
        sizes = [n.attributes["k"].as_int() * n.attributes["n"].as_int() for n in bounded]
        for node, size in zip(bounded, sizes, strict=True):
            whole = node.attributes["budget_us"].as_float()
            GraphEditor(model).set(node, {"budget_us": whole * size / sum(sizes)})
        return ir.passes.PassResult(model, modified=bool(bounded))
