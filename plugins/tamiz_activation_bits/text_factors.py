"""Lets attention over whole texts round its factors where the products before it round theirs.

    TextAttention(q, k, v)      becomes      TextAttention(q, k, v, factor_bits=16)

q, k and v of inputs of 8 bits have lost more than bfloat16 loses, which processors multiply faster.
"""

from __future__ import annotations

import onnx_ir as ir

from tamiz.api import DOMAIN, GraphEditor, GraphPass, Phase, attribute_of, input_of


class RoundTextFactors(GraphPass):
    """Sets the attribute where q, k and v all come from inputs of 8 bits."""

    name = "text-factors"
    phase = Phase.FUSE
    needs = frozenset({"text-attention"})
    provides = frozenset({"ops-final"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        attentions = [
            node
            for node in model.graph
            if (node.domain, node.op_type) == (DOMAIN, "TextAttention")
            and all(_is_of_bytes(input_of(node, name)) for name in ("q", "k", "v"))
        ]
        for node in attentions:
            GraphEditor(model).set(node, {"factor_bits": 16})
        return ir.passes.PassResult(model, modified=bool(attentions))


def _is_of_bytes(value: ir.Value | None) -> bool:
    """Whether a value is a product of inputs of 8 bits."""
    product = None if value is None else value.producer()
    if product is None or (product.domain, product.op_type) != (DOMAIN, "BlockMatMul"):
        return False
    return bool(attribute_of(product, "activation_bits") == 8)
