"""Recognises an activation whose numbers a layer has trained.

xielu(x) = α_p x² + β x                           x > 0
xielu(x) = α_n (exp(min(x, ε)) - 1 - x) + β x     x ≤ 0      (Huang & Schlag 2024)
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter.pattern import MatchResult

from tamiz.api import DOMAIN
from tamiz_passes.rules import Rule
from tamiz_passes.values import scalar_for, too_deep


class Xielu(Rule):
    """Puts tamiz.SwiGLU for xielu(x)."""

    marks = (frozenset({"Exp"}), frozenset({"Where"}))

    def pattern(
        self,
        op: Any,
        x: Any,
        alpha_p: Any,
        alpha_n: Any,
        beta: Any,
        epsilon: Any,
        one: Any,
        zero: Any,
    ) -> Any:
        """xielu(x); the names of the four numbers are those of the op's attributes."""
        above = op.Mul(op.Mul(x, x), alpha_p)
        bent = op.Sub(op.Sub(op.Exp(op.Min(x, epsilon)), one), x)
        chosen = op.Where(op.Greater(x, zero), above, op.Mul(bent, alpha_n))
        return op.Add(chosen, op.Mul(x, beta), _outputs=["y"])

    def check(self, op: Any, *_: Any, **found: Any) -> MatchResult:
        """Whether the constants of a match are numbers, and 1 and 0 where they must be."""
        y, x = found.pop("y"), found.pop("x")
        numbers = {name: scalar_for(x, value) for name, value in found.items()}
        if (numbers.pop("one"), numbers.pop("zero")) != (1.0, 0.0):
            return self.refuse(y, "Its 1 or its 0 is another number.")
        self.trained = numbers
        if missing := [name for name, number in numbers.items() if number is None]:
            return self.refuse(y, f"The activation's {missing[0]} is no constant number.")
        if x.dtype != ir.DataType.FLOAT:
            kind = x.dtype.name if x.dtype is not None else "an unknown type"
            return self.refuse(y, f"The activation works on {kind}, expected FLOAT.")
        if reason := too_deep(x):
            return self.refuse(y, reason)
        return MatchResult()

    def rewrite(self, op: Any, x: ir.Value, **_: Any) -> Any:
        """tamiz.SwiGLU without up."""
        return op.SwiGLU(x, activation="xielu", **self.trained, _domain=DOMAIN)
