"""Packs weights that no mask skips in the layout that is faster to read whole.

A weight is packed by input channel where a mask is planned. If the technique that would have
written the mask was refused, ChannelMatMul without a mask is left; BlockMatMul computes the same
bits.
"""

from __future__ import annotations

import onnx_ir as ir

import tamiz_ops
from tamiz.api import DOMAIN, GraphEditor, GraphPass, Phase, attribute_of, input_of


class PackUnmasked(GraphPass):
    """Turns ChannelMatMul without a mask into BlockMatMul."""

    name = "pack-unmasked"
    phase = Phase.FUSE
    provides = frozenset({"ops-final"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        modified = False
        graph = GraphEditor(model)
        for node in model.graph:
            if node.domain != DOMAIN or node.op_type != "ChannelMatMul" or input_of(node, "mask"):
                continue
            weight = input_of(node, "weight")
            if weight is None or weight.const_value is None or weight.name is None:
                self.note(node, "Its weight is computed; expected a constant.")
                continue
            n, k = (attribute_of(node, name) for name in ("n", "k"))
            stored = weight.const_value.numpy()
            if attribute_of(node, "scale_bits") == 8:
                parts = tamiz_ops.unpack_channels_in_units(stored, n, k)
                tiles = tamiz_ops.pack_int4_in_units(*parts)
            else:
                tiles = tamiz_ops.pack_int4(*tamiz_ops.unpack_channels(stored, n, k))
            packed = graph.constant(weight.name.replace(".channels", ".int4"), tiles)
            graph.connect(node, "weight", packed)
            if not weight.uses():
                del model.graph.initializers[weight.name]
            node.op_type = "BlockMatMul"
            graph.set(node, {"bits": 4})
            modified = True
        return ir.passes.PassResult(model, modified=modified)
