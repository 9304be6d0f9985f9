"""The graph of a decoder with inputs of single layers: Gemma 4, and what Gemma 3n has of it.

Values are normed without a weight, v = v / sqrt(mean(v²) + ε). With E the embedding, P_l a row of a
second one that has a part for each layer l, and norms of different weights:

    p_l = (norm(H^-½ √H E·B_l) + √P P_l) / √2                    the input of layer l, P wide

Behind attention and feed-forward a layer adds its input, and is scaled by a number of its own:

    x   = s_l (x + norm((gelu(x·G_l) · p_l)·W_l))

Experts may stand beside the feed-forward block. Their router reads x itself, r = w · H^-½ x / |x|
with |x| = sqrt(mean(x²) + ε):

    x   = x + norm(norm(feed_forward(norm(x))) + norm(experts(norm(x), r)))
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tamiz_exporters.activations import gated
from tamiz_exporters.decoder_graph import DecoderGraph
from tamiz_exporters.expert_graph import add_experts

_TABLE = "model.embed_tokens_per_layer.weight"


class GemmaGraph(DecoderGraph):
    """The graph of a decoder with inputs of single layers in the making."""

    def begin(self, ids: ir.Value) -> ir.Value:
        """The embedding of the tokens; makes the inputs of layers, too."""
        for layer, attention in enumerate(self.config.attentions):
            if attention.shares is None:
                name = f"model.layers.{layer}.self_attn.v_norm.weight"
                ones = np.ones(self.config.heads_of(attention).size, np.float32)
                self.initialize(name, ir.tensor(ones, name=name))
        x = super().begin(ids)
        if self.config.input_width:
            self.inputs = self._inputs_of_layers(ids, x)
        return x

    def layer(
        self, number: int, x: ir.Value, past: list[ir.Value], present: list[ir.Value]
    ) -> ir.Value:
        """The residual stream after a layer, with its input, scaled."""
        name = f"/model/layers.{number}"
        x = super().layer(number, x, past, present)
        if self.config.input_width:
            x = self.op("Add", f"{name}/per_layer/Add", x, self.met(name, number, x))
        return self.op("Mul", f"{name}/layer_scalar/Mul", x, self.weight(f"{name}/layer_scalar"))

    def block(self, name: str, number: int, norm: str, x: ir.Value) -> ir.Value:
        """The feed-forward block of a layer, and the experts beside it."""
        experts = self.config.experts
        if experts is None:
            return super().block(name, number, norm, x)
        dense = self.feed_forward(f"{name}/mlp", self.norm(f"{name}/{norm}", x))
        dense = self.norm(f"{name}/post_feedforward_layernorm_1", dense)
        routed = self.norm(f"{name}/mlp/router_norm", x)
        routed = self.times(f"{name}/mlp/router_norm/scaled", routed, self.width**-0.5)
        normed = self.norm(f"{name}/pre_feedforward_layernorm_2", x)
        y = add_experts(self, f"{name}/mlp", experts, self.config.activation, normed, None, routed)
        y = self.norm(f"{name}/post_feedforward_layernorm_2", y)
        return self.op("Add", f"{name}/mlp/Add", dense, y)

    def met(self, name: str, number: int, x: ir.Value) -> ir.Value:
        """What x and the input of a layer add to the residual stream."""
        gate = self.linear(f"{name}/per_layer_input_gate", x)
        x = gated(self, f"{name}/per_layer", self.config.activation, gate, self._input(number))
        x = self.linear(f"{name}/per_layer_projection", x)
        return self.norm(f"{name}/post_per_layer_input_norm", x)

    @property
    def width(self) -> int:
        """H."""
        return int(self.weight("/model/norm").shape[0])  # type: ignore[index,arg-type]

    def _inputs_of_layers(self, ids: ir.Value, x: ir.Value) -> ir.Value:
        """p of all layers, ``[B, S, layers·P]``."""
        name, width, count = "/model/per_layer", self.config.input_width, len(self.config.layers)
        rows = self.times(f"{name}/rows", self._rows(ids), width**0.5)
        made = self.linear("/model/per_layer_model_projection", x)
        made = self.times(f"{name}/projected", made, self.width**-0.5)
        split, joined = (
            self.constant(sizes) for sizes in ([0, 0, count, width], [0, 0, count * width])
        )
        made = self.op("Reshape", f"{name}/Reshape", made, split)
        made = self.norm("/model/per_layer_projection_norm", made)
        made = self.op("Reshape", f"{name}/Reshape_1", made, joined)
        both = self.op("Add", f"{name}/Add", made, rows)
        return self.times(f"{name}/halved", both, 0.5**0.5)

    def _rows(self, ids: ir.Value) -> ir.Value:
        """The rows of the second embedding; tokens that it lacks have that of token 0."""
        name, packed = "/model/embed_tokens_per_layer", self.packed.get(_TABLE)
        table = self.initializers[_TABLE]
        assert table.const_value is not None
        count = packed.n if packed else int(table.const_value.shape.numpy()[0])
        if count < int(self.vocabulary):  # type: ignore[arg-type]
            known = self.op("Less", f"{name}/Less", ids, self.constant(count))
            ids = self.op("Where", f"{name}/Where", known, ids, self.constant(0))
        if packed:
            return self.packed_op("BlockGather", f"{name}/Gather", ids, _TABLE)
        return self.op("Gather", f"{name}/Gather", table, ids, axis=0)

    def _input(self, number: int) -> ir.Value:
        """p of a layer."""
        width = self.config.input_width
        begin, end, axis = (self.constant([at]) for at in (number * width, (number + 1) * width, 2))
        name = f"/model/layers.{number}/per_layer/Slice"
        return self.op("Slice", name, self.inputs, begin, end, axis)
