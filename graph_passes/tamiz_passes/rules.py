"""A rewrite rule that tells its pass why it left a match alone."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule, RewriteRuleClassBase, RewriteRuleSet
from onnxscript.rewriter.pattern import MatchResult

from tamiz.api import DOMAIN, OPSET_VERSION, GraphPass, remove_unused
from tamiz_passes.clean_up import name_nodes

#: Nodes on the way from the end of a match back to an op that marks it, at most.
_REACH = 6
#: Before this opset, Add and Mul broadcast along an axis that is an attribute.
_BROADCASTING = 7


class Rule(RewriteRuleClassBase):
    """A rule that belongs to a pass.

    Subclasses define `pattern`, `check` (which may return `refuse(...)`) and `rewrite`.
    """

    #: Sets of ops: every match has one of each at most `_REACH` nodes before its end, so that other
    #: nodes need no search.
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


class _InEitherOrder(RewriteRule):
    """A rule that matches operands of commutative ops in either order.

    A pattern of n such ops has 2ⁿ orders. They are written out and tried only where what marks the
    rule is near; `RewriteRuleSet(commute=True)` tries all of them at every node.
    """

    def __init__(self, rule: RewriteRule, marks: tuple[frozenset[str], ...]) -> None:
        vars(self).update(vars(rule))
        self._rule, self._marks = rule, marks

    @cached_property
    def _orders(self) -> list[RewriteRule]:
        return list(self._rule.commute())

    def try_rewrite(
        self, model: ir.Model, graph_or_function: Any, node: ir.Node, **settings: Any
    ) -> Any:
        near = _ops_before(node)
        if not all(ops & near for ops in self._marks):
            return None
        tried = (
            order.try_rewrite(model, graph_or_function, node, **settings) for order in self._orders
        )
        return next((found for found in tried if found is not None), None)


def _ops_before(node: ir.Node) -> set[str]:
    """The ops of a node and of what it is computed from, `_REACH` nodes back."""
    seen = level = {node}
    for _ in range(_REACH):
        level = {before for after in level for before in after.predecessors()} - seen
        seen = seen | level
    return {each.op_type for each in seen}


def apply(owner: GraphPass, model: ir.Model, *rules: type[Rule]) -> bool:
    """Applies `rules`, with operands in either order. Returns whether any matched."""
    if model.graph.opset_imports.get("", 1) < _BROADCASTING:
        return False
    there = {node.op_type for node in model.graph.all_nodes()}
    rules = tuple(rule for rule in rules if all(ops & there for ops in rule.marks))
    if not rules:
        return False
    compiled = [
        _InEitherOrder(rule.rule(owner), rule.marks)  # type: ignore[no-untyped-call]
        for rule in rules
    ]
    before = set(model.graph)
    if not RewriteRuleSet(compiled).apply_to_model(model):
        return False
    model.graph.opset_imports[DOMAIN] = OPSET_VERSION
    remove_unused(model)  # what a check has read beyond its pattern
    for node in model.graph:
        if node not in before:
            scope = (node.outputs[0].name or "").rpartition("/")[0]
            node.name = f"{scope}/{node.op_type}"
    name_nodes(model)
    return True
