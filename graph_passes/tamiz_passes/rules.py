"""A rewrite rule that tells its pass why it left a match alone."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir
from onnxscript.rewriter import RewriteRuleClassBase, RewriteRuleSet
from onnxscript.rewriter.pattern import MatchResult

from tamiz.api import DOMAIN, OPSET_VERSION, GraphPass
from tamiz_passes.clean_up import name_nodes

#: Before this opset, Add and Mul broadcast along an axis that is an attribute.
_BROADCASTING = 7


class Rule(RewriteRuleClassBase):
    """A rule that belongs to a pass.

    Subclasses define `pattern`, `check` (which may return `refuse(...)`) and `rewrite`.
    """

    #: Sets of ops: every match has one of each, so that other graphs need no search.
    marks: ClassVar[tuple[frozenset[str], ...]]

    def __init__(self, owner: GraphPass) -> None:
        super().__init__(owner.name)
        self.owner = owner

    def refuse(self, value: ir.Value, reason: str) -> MatchResult:
        """Notes that the node of `value` stays, and fails the match."""
        node = value.producer()
        noted = {(note.node, note.reason) for note in self.owner.notes}
        if node is not None and (node.name, reason) not in noted:  # commuted, it matches again
            self.owner.note(node, reason)
        return MatchResult().fail(reason, value)


def apply(owner: GraphPass, model: ir.Model, *rules: type[Rule]) -> bool:
    """Applies `rules`, with operands in either order. Returns whether any matched."""
    if model.graph.opset_imports.get("", 1) < _BROADCASTING:
        return False
    there = {node.op_type for node in model.graph.all_nodes()}
    rules = tuple(rule for rule in rules if all(ops & there for ops in rule.marks))
    if not rules:
        return False
    compiled = [rule.rule(owner) for rule in rules]  # type: ignore[no-untyped-call]
    before = set(model.graph)
    if not RewriteRuleSet(compiled, commute=True).apply_to_model(model):
        return False
    model.graph.opset_imports[DOMAIN] = OPSET_VERSION
    for node in model.graph:
        if node not in before:
            scope = (node.outputs[0].name or "").rpartition("/")[0]
            node.name = f"{scope}/{node.op_type}"
    name_nodes(model)
    return True
