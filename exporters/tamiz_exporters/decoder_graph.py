"""The dense ONNX graph of a Llama-like decoder, with optimum's interface and names.

For every layer, with x the residual stream, and norm(x) = w · x / sqrt(mean(x²) + ε):

    q, k, v = norm(x)·Wq, norm(x)·Wk, norm(x)·Wv        (+ biases)
    q, k    = rotary(q), rotary(k)                      rotary(u) = u·cos θ + rotate_half(u)·sin θ
    x       = x + softmax(q·Kᵀ · scale + mask)·V·Wo     K = [past, k], V = [past, v]
    x       = x + (f(norm(x)·Wg) · norm(x)·Wu)·Wd       without Wg: x + f(norm(x)·Wu)·Wd

A layer may have a short convolution (LFM2, `convolution_graph`), a gated delta net (Qwen 3.5,
`delta_net_graph`) or a selective state space (Granite 4, `mamba_graph`) in place of attention, or
such a state space beside it (Falcon-H1). In Mamba-2 no layer attends. Keys and values may be made
of a latent of low rank (DeepSeek, `latent_graph`).

Optional parts: norms of single heads before the rotation (Qwen 3) or behind it (Hunyuan), norms of
what attention and feed-forward add to x (Gemma), in place of those of x (OLMo 2), a factor on the
embedding (Gemma), a norm of it (BLOOM), a table of positions that is added to it (GPT-2), queries
that grow with their position (Ministral 3), soft caps c · tanh(u / c) of scores and logits (Gemma
2), layers that see a window of the last keys, layers without rotary embedding, a bias on scores by
distance (ALiBi), a score of each head that joins the sum of its softmax, its *sink* (gpt-oss), a
sigmoid of x that multiplies what attention gives (Qwen 3.5), norms that take the mean off
(StarCoder 2), attention and feed-forward side by side:

    x       = x + (attention(norm(x)) + feed_forward(norm(x)))           (Command R, Phi-2)

The query heads that share a key/value head are one matrix of G·S rows, so keys and values are
never repeated in memory; a mask has G·S rows to match and is made once for all layers of a window.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from tamiz.api import DOMAIN, OPSET_VERSION
from tamiz_exporters.activations import ACTIVATIONS, gated
from tamiz_exporters.convolution_graph import shown_tokens
from tamiz_exporters.decoder_config import (
    DecoderConfig,
    LayerAttention,
    NoMixer,
    Packed,
    ShortConvolution,
)
from tamiz_exporters.expert_graph import add_experts
from tamiz_exporters.graph_builder import GraphBuilder, typed_value
from tamiz_exporters.latent_graph import head_numbers, latent_projections, values_of_latents
from tamiz_exporters.mask_graph import Masks, attention_masks
from tamiz_exporters.mixer_graph import mixed, mixer_states
from tamiz_exporters.rotary_graph import query_growth, rotary_table, rotate
from tamiz_exporters.rotary_norms import add_unit_norms, take_weights_behind, weighted
from tamiz_exporters.sink_graph import softmax

OPSET = 18
_POSITIONS = "/model/embed_positions"
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


def build_decoder(
    config: DecoderConfig, weights: Mapping[str, ir.TensorProtocol | Packed]
) -> ir.Model:
    """Builds the graph.

    Args:
        config: The decoder's shape.
        weights: Tensors under Hugging Face's names. Weights of linear layers are ``[K, N]``, the
            embedding is ``[V, H]``; packed ones are multiplied by ``tamiz.BlockMatMul``. Biases,
            ``q_norm``/``k_norm``, ``lm_head.weight`` and the norms of a layer are optional; with
            ``post_feedforward_layernorm`` the norm before the feed-forward block is
            ``pre_feedforward_layernorm``. Without a weight of its own the head is the transposed
            embedding.

    Returns:
        The model; inputs ``input_ids, attention_mask, position_ids, past_key_values.N.key/value``,
        outputs ``logits, present.N.key/value``; a layer with a short convolution has instead
        ``past_conv.N`` and ``present_conv.N``, one with a gated delta net ``past_delta.N`` and
        ``present_delta.N``, one with a selective state space ``past_mamba.N`` and
        ``present_mamba.N``.
    """
    from tamiz_exporters.gemma_graph import GemmaGraph  # which are decoders' graphs
    from tamiz_exporters.stream_graph import StreamGraph

    kind = GemmaGraph if config.normed_values else DecoderGraph
    return (kind if config.streams is None else StreamGraph)(config, weights).build()


class DecoderGraph(GraphBuilder):
    """The graph of a decoder in the making."""

    def __init__(
        self, config: DecoderConfig, weights: Mapping[str, ir.TensorProtocol | Packed]
    ) -> None:
        super().__init__(weights)
        self.config = config
        self.caches: dict[str, tuple[ir.Value, ir.Value]] = {}
        if config.norms_behind:
            take_weights_behind(self, len(config.layers))
        if config.unit_heads:
            add_unit_norms(self, config)
        packed = self.packed.get(_EMBEDDING)
        table = self.initializers[_EMBEDDING].const_value
        assert table is not None
        self.vocabulary = packed.n if packed else table.shape[0]

    def build(self) -> ir.Model:
        """Returns the model."""
        config = self.config
        length = "past_sequence_length + sequence_length"
        ids = typed_value("input_ids", ir.DataType.INT64, "batch_size", "sequence_length")
        self.attention_mask = typed_value("attention_mask", ir.DataType.INT64, "batch_size", length)
        self.position_ids = typed_value(
            "position_ids", ir.DataType.INT64, "batch_size", "sequence_length"
        )
        inputs, outputs = [ids, self.attention_mask, self.position_ids], []
        x = self.begin(ids)
        for layer in range(len(config.layers)):
            past, present = mixer_states(self, layer, length)
            inputs += past
            outputs += present
            x = self.layer(layer, x, past, present)
        x = self.norm("/model/norm", self.end(x))
        logits = typed_value(
            "logits", ir.DataType.FLOAT, "batch_size", "sequence_length", self.vocabulary
        )
        self.head(x, logits)
        graph = ir.Graph(
            inputs,
            [logits, *outputs],
            nodes=self.nodes,
            initializers=tuple(self.initializers.values()),
            opset_imports={"": OPSET, **self.domain()},
            name="main_graph",
        )
        return ir.Model(graph, ir_version=8, producer_name="tamiz")

    def domain(self) -> dict[str, int]:
        """The domain of tamiz, where the graph has ops of it."""
        own = any(node.domain == DOMAIN for node in self.nodes)
        return {DOMAIN: OPSET_VERSION} if own else {}

    def begin(self, ids: ir.Value) -> ir.Value:
        """The embedding of the tokens; makes the tables and masks that the layers share."""
        x = self.times("/model/embed_tokens", self.embedding(ids), self.config.embedding_scale)
        x = self.norm_where("/model/embed_norm", x)
        if self.has(_POSITIONS):
            at = self.op(
                "Gather", f"{_POSITIONS}/Gather", self.weight(_POSITIONS), self.position_ids
            )
            x = self.op("Add", f"{_POSITIONS}/Add", x, at)
        rotaries = dict.fromkeys(
            at.rotary for at in self.config.attentions if at.rotary is not None
        )
        self.tables = {
            r: rotary_table(self, r, n, self.position_ids) for n, r in enumerate(rotaries)
        }
        self.masks = self.attention_masks(ids)
        if self.config.growth is not None:
            self.grown = query_growth(self, self.config.growth, self.position_ids)
        if self.config.latent is not None:
            self.head_numbers = head_numbers(self, ids, self.config.heads)
        if any(isinstance(layer, ShortConvolution) for layer in self.config.layers):
            self.shown = shown_tokens(self, ids, self.attention_mask)
        return x

    def attention_masks(self, ids: ir.Value) -> Masks:
        """What is added to scores."""
        return attention_masks(self, ids)

    def end(self, x: ir.Value) -> ir.Value:
        """What the last norm reads."""
        return x

    def cache(
        self, name: str, layer: LayerAttention, length: str = "past_sequence_length"
    ) -> ir.Value:
        """A past or a present of keys or values."""
        heads = self.config.heads_of(layer)
        return typed_value(name, ir.DataType.FLOAT, "batch_size", heads.count, length, heads.size)

    def embedding(self, ids: ir.Value) -> ir.Value:
        """The rows of the embedding that tokens look up."""
        if _EMBEDDING in self.packed:
            return self.packed_op("BlockGather", "/model/embed_tokens/Gather", ids, _EMBEDDING)
        table = self.initializers[_EMBEDDING]
        return self.op("Gather", "/model/embed_tokens/Gather", table, ids, axis=0)

    def layer(
        self, number: int, x: ir.Value, past: list[ir.Value], present: list[ir.Value]
    ) -> ir.Value:
        """The residual stream after a layer; without `past` it has no cache."""
        name, self.layer_input = f"/model/layers.{number}", x
        y = normed = self.norm_where(f"{name}/input_layernorm", x)
        layer = self.config.layers[number]
        if self.config.one_block:
            alone = isinstance(layer, NoMixer)
            y = (
                self.mlp(f"{name}/mlp", number, y)
                if alone
                else mixed(self, number, y, past, present)
            )
            return self.op("Add", f"{name}/Add", x, y)
        y = mixed(self, number, y, past, present)
        before, behind = "post_attention_layernorm", "post_feedforward_layernorm"
        if self.config.parallel:
            of_mlp = self.norm(f"{name}/{before}", x) if self.has(f"{name}/{before}") else normed
            y = self.op("Add", f"{name}/Add", y, self.mlp(f"{name}/mlp", number, of_mlp))
            return self.op("Add", f"{name}/Add_1", x, y)
        if self.has(f"{name}/{behind}"):
            y = self.norm(f"{name}/post_attention_layernorm", y)
            before = "pre_feedforward_layernorm"
        x = self.op(
            "Add", f"{name}/Add", x, self.times(f"{name}/scaled", y, self.config.residual_scale)
        )
        y = self.norm_where(f"{name}/{behind}", self.block(name, number, before, x))
        return self.op(
            "Add", f"{name}/Add_1", x, self.times(f"{name}/scaled_1", y, self.config.residual_scale)
        )

    def block(self, name: str, number: int, norm: str, x: ir.Value) -> ir.Value:
        """The feed-forward block of a layer, with the norm before it."""
        return self.mlp(f"{name}/mlp", number, self.norm_where(f"{name}/{norm}", x))

    def norm(self, name: str, x: ir.Value) -> ir.Value:
        """A norm of the residual stream, or of heads."""
        write = self.layer_norm if self.config.centred else self.rms_norm
        return write(name, x, self.config.epsilon)

    def norm_where(self, name: str, x: ir.Value) -> ir.Value:
        """A norm that not all decoders have; x where it is missing."""
        return self.norm(name, x) if self.has(name) else x

    def heads(
        self, name: str, suffix: str, x: ir.Value, count: int, size: int, norm: str
    ) -> ir.Value:
        """Returns ``[B, S, count·D]`` as ``[B, count, S, D]``, each head normed if the norm is."""
        shape = self.constant([0, 0, count, size])
        normed = self.has(f"{name}/{norm}")
        together = normed and self.weight(f"{name}/{norm}").shape != ir.Shape([size])
        if together:  # one norm of all heads (OLMoE)
            x = self.norm(f"{name}/{norm}", x)
        x = self.op("Reshape", f"{name}/Reshape{suffix}", x, shape)
        if normed and not together:
            x = self.norm(f"{name}/{norm}", x)
        return self.op("Transpose", f"{name}/Transpose{suffix}", x, perm=[0, 2, 1, 3])

    def attention(
        self,
        name: str,
        layer: LayerAttention,
        x: ir.Value,
        past: list[ir.Value],
        present: list[ir.Value],
    ) -> ir.Value:
        """What the attention of a layer adds to the residual stream."""
        config, heads = self.config, self.config.heads_of(layer)
        q, keys, values = self.heads_of(name, layer, x, past, present)
        q = weighted(self, name, q)
        scale = self.constant(config.scale or heads.size**-0.5, np.float32)
        q = self.op("Mul", f"{name}/Mul", q, scale)
        queries = q
        grouped = config.heads != heads.count
        if grouped:
            shape = self.constant([0, heads.count, -1, heads.size])
            q = self.op("Reshape", f"{name}/Reshape_3", q, shape)
        keys = self.op("Transpose", f"{name}/Transpose_3", keys, perm=[0, 1, 3, 2])
        scores = self.op("MatMul", f"{name}/MatMul", q, keys)
        scores = self.soft_cap(f"{name}/soft_cap", scores, config.score_cap)
        mask = self.masks[layer.window, config.group_of(layer)]
        scores = self.op("Add", f"{name}/Add", scores, mask)
        scores = softmax(self, name, config.heads, heads.count, scores, queries)
        y = self.op("MatMul", f"{name}/MatMul_1", scores, values)
        if grouped:
            shape = self.constant([0, config.heads, -1, heads.size])
            y = self.op("Reshape", f"{name}/Reshape_4", y, shape)
        y = self.op("Transpose", f"{name}/Transpose_4", y, perm=[0, 2, 1, 3])
        width = self.constant([0, 0, config.heads * heads.size])
        y = self.op("Reshape", f"{name}/Reshape_5", y, width)
        if config.latent is not None:
            y = values_of_latents(self, name, config.latent, y, self.head_numbers)
        if self.has(f"{name}/output_gate"):
            gate = self.op("Sigmoid", f"{name}/Sigmoid", self.linear(f"{name}/output_gate", x))
            y = self.op("Mul", f"{name}/Mul_gate", y, gate)
        return self.linear(f"{name}/o_proj", self.norm_where(f"{name}/attn_sub_norm", y))

    def heads_of(
        self,
        name: str,
        layer: LayerAttention,
        x: ir.Value,
        past: list[ir.Value],
        present: list[ir.Value],
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Queries ``[B, H, S, D]``, and all keys and values ``[B, Hkv, L, D]``."""
        count, own = self.config.heads, self.config.heads_of(layer)
        of_keys, size = own.count, own.size
        if layer.shares is not None:
            q = self.heads(name, "", self.linear(f"{name}/q_proj", x), count, size, "q_norm")
            owner = f"/model/layers.{layer.shares}/self_attn"
            return self.turned(f"{name}/rotary_q", layer, q), *self.caches[owner]
        q, k, v = self.projections(name, x)
        q = self.heads(name, "", q, count, size, "q_norm")
        k = self.heads(name, "_1", k, of_keys, size, "k_norm")
        q = self.turned(f"{name}/rotary_q", layer, q)
        k = self.turned(f"{name}/rotary_k", layer, k)
        grown = [k]
        if v is not None:
            grown.append(self.heads(name, "_2", v, of_keys, size, "v_norm"))
        for number, (before, after) in enumerate(zip(past, present, strict=True)):
            at = f"{name}/Concat{f'_{number}' if number else ''}"
            grown[number] = self.op("Concat", at, before, grown[number], output=after, axis=2)
        keys, values = grown[0], grown[-1]
        self.caches[name] = keys, values
        return q, keys, values

    def turned(self, name: str, layer: LayerAttention, x: ir.Value) -> ir.Value:
        """Heads with their rotary embedding, where the layer has one."""
        if layer.rotary is None:
            return x
        size = self.config.heads_of(layer).size
        return rotate(self, name, self.tables[layer.rotary], layer.rotary, size, x)

    def projections(self, name: str, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value | None]:
        """What q, k and v are heads of, ``[B, S, heads·D]``; no v: the values are the keys."""
        if (latent := self.config.latent) is None:
            q, k = (self.linear(f"{name}/{part}_proj", x) for part in "qk")
            if self.config.growth is not None:
                q = self.op("Mul", f"{name}/Mul_growth", q, self.grown)
            return q, k, self.linear(f"{name}/v_proj", x) if self.has(f"{name}/v_proj") else k
        q, latents = latent_projections(self, name, latent, x, self.head_numbers)
        return q, latents, None

    def mlp(self, name: str, number: int, x: ir.Value) -> ir.Value:
        """What the feed-forward block adds to the residual stream."""
        experts = self.config.experts
        if experts is None or number not in experts.layers:
            return self.feed_forward(name, x)
        shared = None
        if experts.shared_width:
            shared = self.feed_forward(f"{name}/shared_expert", x)
        routed = self.layer_input if experts.early else x
        return add_experts(self, name, experts, self.config.activation, x, shared, routed)

    def feed_forward(self, name: str, x: ir.Value) -> ir.Value:
        """A feed-forward block with a gate or without."""
        activation = self.config.activation
        if self.has(f"{name}/gate_proj"):
            gate, up = (self.linear(f"{name}/{part}_proj", x) for part in ("gate", "up"))
            gate = self.times(f"{name}/gate_scale", gate, self.config.gate_scale)
            hidden = gated(self, name, activation, gate, up)
        else:
            hidden = self.linear(f"{name}/up_proj", x)
            hidden = ACTIVATIONS[activation](self, f"{name}/act_fn", hidden)
        y = self.linear(f"{name}/down_proj", self.norm_where(f"{name}/ffn_sub_norm", hidden))
        return self.times(f"{name}/down_scale", y, self.config.down_scale)

    def soft_cap(
        self, name: str, x: ir.Value, cap: float, output: ir.Value | None = None
    ) -> ir.Value:
        """Returns c · tanh(x / c), or x where there is no cap."""
        if not cap:
            return x
        factor = self.constant(cap, np.float32)
        inner = self.op("Div", f"{name}/Div", x, factor)
        return self.op(
            "Mul", f"{name}/Mul", self.op("Tanh", f"{name}/Tanh", inner), factor, output=output
        )

    def head(self, x: ir.Value, logits: ir.Value) -> None:
        """The logits."""
        capped, divisor = self.config.logit_cap > 0, self.config.logit_divisor
        y = self.head_product(x, None if capped or divisor != 1 else logits)
        if divisor != 1:
            number = self.constant(divisor, np.float32)
            y = self.op("Div", "/lm_head/Div", y, number, output=None if capped else logits)
        self.soft_cap("/lm_head/soft_cap", y, self.config.logit_cap, logits)

    def head_product(self, x: ir.Value, output: ir.Value | None) -> ir.Value:
        """The product of the head, whose weight may be the embedding."""
        if _HEAD in self.initializers:
            return self.linear("/lm_head", x, output=output)
        if _EMBEDDING in self.packed:
            return self.packed_op("BlockMatMul", "/lm_head/MatMul", x, _EMBEDDING, output=output)
        table = self.initializers[_EMBEDDING]
        table = self.op("Transpose", "/lm_head/Transpose", table, perm=[1, 0])
        return self.op("MatMul", "/lm_head/MatMul", x, table, output=output)
