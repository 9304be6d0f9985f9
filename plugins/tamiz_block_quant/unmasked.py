"""Packs weights that no mask skips any more the way that is faster to read whole.

A weight is packed by input channel where a mask is planned. If the technique that would have
written the mask was refused, what is left is ChannelMatMul without a mask; BlockMatMul computes the
same bits.
"""

from __future__ import annotations

import onnx_ir as ir

import tamiz_ops
from tamiz.api import DOMAIN, GraphPass, Phase, add_initializer


class PackUnmasked(GraphPass):
    """Turns ChannelMatMul without a mask into BlockMatMul."""

    name = "pack-unmasked"
    phase = Phase.FUSE
    provides = frozenset({"ops-final"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        modified = False
        for node in model.graph:
            if node.domain != DOMAIN or node.op_type != "ChannelMatMul":
                continue
            _, weight, *mask_and_bias = node.inputs
            if mask_and_bias and mask_and_bias[0] is not None:
                continue
            if weight is None or weight.const_value is None or weight.name is None:
                self.note(node, "Its weight is computed; expected a constant.")
                continue
            n, k = (node.attributes[name].as_int() for name in ("n", "k"))
            found = weight.const_value.numpy()
            if "scale_bits" in node.attributes and node.attributes["scale_bits"].as_int() == 8:
                parts = tamiz_ops.unpack_channels_in_units(found, n, k)
                tiles = tamiz_ops.pack_int4_in_units(*parts)
            else:
                tiles = tamiz_ops.pack_int4(*tamiz_ops.unpack_channels(found, n, k))
            packed = add_initializer(model, weight.name.replace(".channels", ".int4"), tiles)
            node.replace_input_with(1, packed)
            if not weight.uses():
                del model.graph.initializers[weight.name]
            node.op_type = "BlockMatMul"
            node.attributes["bits"] = ir.AttrInt64("bits", 4)
            modified = True
        return ir.passes.PassResult(model, modified=modified)
