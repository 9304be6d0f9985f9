"""What the weights of experts cost, of which a token reads those of the chosen ones.

They are no sites: techniques leave them as the source has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tamiz.api.cost import Cost
from tamiz.interface.metadata import DOMAIN
from tamiz_ops.formats import find_format

if TYPE_CHECKING:
    import onnx_ir as ir


def expert_costs(graph: ir.Graph) -> dict[str, Cost]:
    """The cost of each weight of experts, by the name of the constant."""
    costs = {}
    for node in graph:
        if (node.domain, node.op_type) != (DOMAIN, "ExpertMatMul"):
            continue
        weight, chosen = node.inputs[1], node.inputs[2]
        assert weight is not None
        assert weight.const_value is not None
        assert chosen is not None
        assert chosen.shape is not None
        top, experts = chosen.shape[-1], node.attributes.get_int("experts", 0)
        share = top / experts if isinstance(top, int) and experts else 1.0
        stored = int(weight.const_value.nbytes)
        format = find_format(node.attributes.get_string("format", ""))
        weights = node.attributes.get_int("n", 0) * node.attributes.get_int("k", 0)
        costs[weight.name or ""] = Cost(
            stored, round(share * stored), round(share * format.work * weights)
        )
    return costs
