"""The dense ONNX graph of a Llama-like decoder, with optimum's interface and names.

For every layer, with x the residual stream, and norm(x) = w · x / sqrt(mean(x²) + ε):

    q, k, v = norm(x)·Wq, norm(x)·Wk, norm(x)·Wv        (+ biases)
    q, k    = rotary(q), rotary(k)                      rotary(u) = u·cos θ + rotate_half(u)·sin θ
    x       = x + softmax(q·Kᵀ · scale + mask)·V·Wo     K = [past, k], V = [past, v]
    x       = x + (f(norm(x)·Wg) · norm(x)·Wu)·Wd

Optional parts: norms of single heads before the rotation (Qwen 3), norms of what attention and
feed-forward add to x and a factor on the embedding (Gemma), soft caps c · tanh(u / c) of scores and
logits (Gemma 2), layers that see a window of the last keys, layers without rotary embedding.

The query heads that share a key/value head are one matrix of G·S rows, so keys and values are
never repeated in memory; a mask has G·S rows to match and is made once for all layers of a window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from tamiz.api import DOMAIN, OPSET_VERSION
from tamiz_exporters.activations import ACTIVATIONS
from tamiz_exporters.decoder_config import DecoderConfig, LayerAttention, Packed, Rotary

OPSET = 18
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_FLOAT_MIN = float(np.finfo(np.float32).min)


def build_decoder(
    config: DecoderConfig, weights: Mapping[str, ir.TensorProtocol | Packed]
) -> ir.Model:
    """Builds the graph.

    Args:
        config: The decoder's shape.
        weights: Tensors under Hugging Face's names. Weights of linear layers are ``[K, N]``, the
            embedding is ``[V, H]``; packed ones are multiplied by ``tamiz.BlockMatMul``. Biases,
            ``q_norm``/``k_norm``, ``lm_head.weight`` and, for a norm around each block,
            ``pre_feedforward_layernorm``/``post_feedforward_layernorm`` are optional. Without a
            weight of its own the head is the transposed embedding.

    Returns:
        The model; inputs ``input_ids, attention_mask, position_ids, past_key_values.N.key/value``,
        outputs ``logits, present.N.key/value``.
    """
    return _Decoder(config, weights).build()


class _Decoder:
    def __init__(
        self, config: DecoderConfig, weights: Mapping[str, ir.TensorProtocol | Packed]
    ) -> None:
        self.config = config
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}
        self.packed = {name: w for name, w in weights.items() if isinstance(w, Packed)}
        for name, weight in weights.items():
            self.initialize(name, weight.tensor if isinstance(weight, Packed) else weight)
        packed = self.packed.get(_EMBEDDING)
        table = self.initializers[_EMBEDDING].const_value
        assert table is not None
        self.vocabulary = packed.n if packed else table.shape[0]

    def build(self) -> ir.Model:
        config = self.config
        length = "past_sequence_length + sequence_length"
        ids = _value("input_ids", ir.DataType.INT64, "batch_size", "sequence_length")
        self.attention_mask = _value("attention_mask", ir.DataType.INT64, "batch_size", length)
        self.position_ids = _value(
            "position_ids", ir.DataType.INT64, "batch_size", "sequence_length"
        )
        inputs, outputs = [ids, self.attention_mask, self.position_ids], []
        x = self.embedding(ids)
        if config.embedding_scale != 1:
            factor = self.constant(config.embedding_scale, np.float32)
            x = self.op("Mul", "/model/embed_tokens/Mul", x, factor)
        rotaries = dict.fromkeys(at.rotary for at in config.layers if at.rotary is not None)
        self.tables = {r: self.rotary_table(r, n) for n, r in enumerate(rotaries)}
        self.masks = self.attention_masks(ids)
        for layer in range(len(config.layers)):
            past = [self.cache(f"past_key_values.{layer}.{part}") for part in ("key", "value")]
            present = [self.cache(f"present.{layer}.{part}", length) for part in ("key", "value")]
            inputs += past
            outputs += present
            x = self.layer(layer, x, past, present)
        x = self.norm("/model/norm", x)
        logits = _value(
            "logits", ir.DataType.FLOAT, "batch_size", "sequence_length", self.vocabulary
        )
        self.head(x, logits)
        graph = ir.Graph(
            inputs,
            [logits, *outputs],
            nodes=self.nodes,
            initializers=tuple(self.initializers.values()),
            opset_imports={"": OPSET, **({DOMAIN: OPSET_VERSION} if self.packed else {})},
            name="main_graph",
        )
        return ir.Model(graph, ir_version=8, producer_name="tamiz")

    def cache(self, name: str, length: str = "past_sequence_length") -> ir.Value:
        config = self.config
        return _value(
            name, ir.DataType.FLOAT, "batch_size", config.kv_heads, length, config.head_dim
        )

    def initialize(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        value = ir.Value(
            name=name,
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        self.initializers[name] = value
        return value

    def constant(self, value: Any, dtype: type = np.int64) -> ir.Value:
        """Returns the one initializer that holds this value."""
        array: np.ndarray = np.asarray(value, dtype)
        numbers = "_".join(str(number) for number in array.ravel().tolist())
        name = f"constant.{array.dtype}.{array.ndim}d.{numbers}"
        if name in self.initializers:
            return self.initializers[name]
        return self.initialize(name, ir.tensor(array, name=name))

    def op(
        self,
        op_type: str,
        name: str,
        *inputs: ir.Value,
        output: ir.Value | None = None,
        **attrs: Any,
    ) -> ir.Value:
        output = output or ir.Value(name=f"{name}_output_0")
        attributes = [ir.convenience.convert_attribute(key, attrs[key]) for key in attrs]
        self.nodes.append(ir.Node("", op_type, inputs, attributes, outputs=[output], name=name))
        return output

    def packed_op(
        self,
        op_type: str,
        name: str,
        x: ir.Value,
        weight: str,
        bias: ir.Value | None = None,
        output: ir.Value | None = None,
    ) -> ir.Value:
        """A product with a packed weight, or a lookup; its shape is said, as ONNX infers none."""
        packed = self.packed[weight]
        width = packed.n if op_type == "BlockMatMul" else packed.k
        output = output or _value(
            f"{name}_output_0", ir.DataType.FLOAT, "batch_size", "sequence_length", width
        )
        attributes = [
            ir.convenience.convert_attribute(*pair) for pair in packed.attributes().items()
        ]
        inputs = [x, self.initializers[weight], *([] if bias is None else [None, bias])]
        node = ir.Node(DOMAIN, op_type, inputs, attributes, outputs=[output], name=name)
        self.nodes.append(node)
        return output

    def embedding(self, ids: ir.Value) -> ir.Value:
        if _EMBEDDING in self.packed:
            return self.packed_op("BlockGather", "/model/embed_tokens/Gather", ids, _EMBEDDING)
        table = self.initializers[_EMBEDDING]
        return self.op("Gather", "/model/embed_tokens/Gather", table, ids, axis=0)

    def rotary_table(self, rotary: Rotary, number: int) -> tuple[ir.Value, ir.Value]:
        """Returns cos θ and sin θ, ``[B, 1, S, R]``, θ = position · inverse frequency."""
        which = f".{number}" if number else ""
        name, constant = f"/model/rotary_emb{which}", f"model.rotary_emb{which}.inv_freq"
        frequency = self.initialize(constant, ir.tensor(rotary.inverse_frequency, name=constant))
        if rotary.long_frequency is not None:
            frequency = self.frequency_of_length(name, rotary, frequency)
        position = self.op(
            "Unsqueeze", f"{name}/Unsqueeze", self.position_ids, self.constant([1, 3])
        )
        position = self.op("Cast", f"{name}/Cast", position, to=ir.DataType.FLOAT)
        angle = self.op("Mul", f"{name}/Mul", position, frequency)
        angle = self.op("Concat", f"{name}/Concat", angle, angle, axis=-1)
        cos, sin = self.op("Cos", f"{name}/Cos", angle), self.op("Sin", f"{name}/Sin", angle)
        if rotary.factor == 1:
            return cos, sin
        factor = self.constant(rotary.factor, np.float32)
        return self.op("Mul", f"{name}/Mul_1", cos, factor), self.op(
            "Mul", f"{name}/Mul_2", sin, factor
        )

    def frequency_of_length(self, name: str, rotary: Rotary, short: ir.Value) -> ir.Value:
        """The frequencies of this run: others if any position is beyond the original context."""
        constant = f"{name[1:].replace('/', '.')}.long_inv_freq"
        assert rotary.long_frequency is not None
        long = self.initialize(constant, ir.tensor(rotary.long_frequency, name=constant))
        last = self.op("ReduceMax", f"{name}/ReduceMax", self.position_ids, keepdims=0)
        limit = self.constant(rotary.original_context - 1)
        beyond = self.op("Greater", f"{name}/Greater", last, limit)
        return self.op("Where", f"{name}/Where", beyond, long, short)

    def attention_masks(self, ids: ir.Value) -> dict[int, ir.Value]:
        """Returns by window what is added to the scores, ``[B, 1, G·S, L]``: 0 or -max.

        Query i stands at position L - S + i of the mask and sees the keys up to itself, of a
        window W the last W of them.
        """
        group = self.config.heads // self.config.kv_heads
        zero, one = self.constant(0), self.constant(1)
        sequence = self.op("Shape", "/model/Shape", ids, start=1)
        total = self.op("Shape", "/model/Shape_1", self.attention_mask, start=1)
        sequence = self.op("Squeeze", "/model/Squeeze", sequence)
        total = self.op("Squeeze", "/model/Squeeze_1", total)
        past = self.op("Sub", "/model/Sub", total, sequence)
        key = self.op("Range", "/model/Range", zero, total, one)
        query = self.op("Range", "/model/Range_1", past, total, one)
        if group > 1:
            query = self.op("Tile", "/model/Tile", query, self.constant([group]))
        query = self.op("Unsqueeze", "/model/Unsqueeze", query, self.constant([1]))
        causal = self.op("LessOrEqual", "/model/LessOrEqual", key, query)
        given = self.op("Cast", "/model/Cast", self.attention_mask, to=ir.DataType.BOOL)
        given = self.op("Unsqueeze", "/model/Unsqueeze_1", given, self.constant([1, 2]))
        visible = self.op("And", "/model/And", causal, given)
        masks = {}
        for window in dict.fromkeys(at.window for at in self.config.layers):
            name, seen = "/model", visible
            if window:
                name = f"/model/window.{window}"
                begin = self.op("Sub", f"{name}/Sub", query, self.constant(window))
                near = self.op("Greater", f"{name}/Greater", key, begin)
                seen = self.op("And", f"{name}/And", visible, near)
            shown, hidden = (self.constant(number, np.float32) for number in (0.0, _FLOAT_MIN))
            masks[window] = self.op("Where", f"{name}/Where", seen, shown, hidden)
        return masks

    def layer(
        self, number: int, x: ir.Value, past: list[ir.Value], present: list[ir.Value]
    ) -> ir.Value:
        name = f"/model/layers.{number}"
        y = self.norm(f"{name}/input_layernorm", x)
        y = self.attention(f"{name}/self_attn", self.config.layers[number], y, past, present)
        before, after = "post_attention_layernorm", ""
        if self.has(f"{name}/pre_feedforward_layernorm"):
            y = self.norm(f"{name}/post_attention_layernorm", y)
            before, after = "pre_feedforward_layernorm", "post_feedforward_layernorm"
        x = self.op("Add", f"{name}/Add", x, y)
        y = self.mlp(f"{name}/mlp", self.norm(f"{name}/{before}", x))
        if after:
            y = self.norm(f"{name}/{after}", y)
        return self.op("Add", f"{name}/Add_1", x, y)

    def norm(self, name: str, x: ir.Value) -> ir.Value:
        square = self.op("Pow", f"{name}/Pow", x, self.constant(2.0, np.float32))
        mean = self.op("ReduceMean", f"{name}/ReduceMean", square, self.constant([-1]), keepdims=1)
        epsilon = self.constant(self.config.epsilon, np.float32)
        root = self.op("Sqrt", f"{name}/Sqrt", self.op("Add", f"{name}/Add", mean, epsilon))
        inverse = self.op("Div", f"{name}/Div", self.constant(1.0, np.float32), root)
        scaled = self.op("Mul", f"{name}/Mul", x, inverse)
        return self.op("Mul", f"{name}/Mul_1", self.weight(name), scaled)

    def weight(self, name: str, part: str = "weight") -> ir.Value:
        return self.initializers[f"{name[1:].replace('/', '.')}.{part}"]

    def has(self, name: str, part: str = "weight") -> bool:
        return f"{name[1:].replace('/', '.')}.{part}" in self.initializers

    def linear(self, name: str, x: ir.Value) -> ir.Value:
        weight = f"{name[1:].replace('/', '.')}.weight"
        if weight in self.packed:
            bias = self.weight(name, "bias") if self.has(name, "bias") else None
            return self.packed_op("BlockMatMul", f"{name}/MatMul", x, weight, bias)
        y = self.op("MatMul", f"{name}/MatMul", x, self.weight(name))
        if self.has(name, "bias"):
            y = self.op("Add", f"{name}/Add", self.weight(name, "bias"), y)
        return y

    def heads(self, name: str, suffix: str, x: ir.Value, count: int, norm: str = "") -> ir.Value:
        """Returns ``[B, S, count·D]`` as ``[B, count, S, D]``, each head normed where asked."""
        shape = self.constant([0, 0, count, self.config.head_dim])
        x = self.op("Reshape", f"{name}/Reshape{suffix}", x, shape)
        if norm and self.has(f"{name}/{norm}"):
            x = self.norm(f"{name}/{norm}", x)
        return self.op("Transpose", f"{name}/Transpose{suffix}", x, perm=[0, 2, 1, 3])

    def rotary(self, name: str, rotary: Rotary, x: ir.Value) -> ir.Value:
        """Rotates the first R of D channels; channel i pairs with channel i + R/2."""
        half = len(rotary.inverse_frequency)
        cos, sin = self.tables[rotary]
        rest = None
        if 2 * half < self.config.head_dim:
            rest = self.slice(f"{name}/Slice_rest", x, 2 * half, self.config.head_dim)
            x = self.slice(f"{name}/Slice_rotary", x, 0, 2 * half)
        low = self.slice(f"{name}/Slice", x, 0, half)
        high = self.slice(f"{name}/Slice_1", x, half, 2 * half)
        turned = self.op("Neg", f"{name}/Neg", high)
        turned = self.op("Concat", f"{name}/Concat", turned, low, axis=-1)
        straight = self.op("Mul", f"{name}/Mul", x, cos)
        turned = self.op("Mul", f"{name}/Mul_1", turned, sin)
        y = self.op("Add", f"{name}/Add", straight, turned)
        if rest is not None:
            y = self.op("Concat", f"{name}/Concat_rest", y, rest, axis=-1)
        return y

    def slice(self, name: str, x: ir.Value, begin: int, end: int) -> ir.Value:
        axis = self.constant([3])
        return self.op("Slice", name, x, self.constant([begin]), self.constant([end]), axis)

    def attention(
        self,
        name: str,
        layer: LayerAttention,
        x: ir.Value,
        past: list[ir.Value],
        present: list[ir.Value],
    ) -> ir.Value:
        config = self.config
        q = self.heads(name, "", self.linear(f"{name}/q_proj", x), config.heads, "q_norm")
        k = self.heads(name, "_1", self.linear(f"{name}/k_proj", x), config.kv_heads, "k_norm")
        v = self.heads(name, "_2", self.linear(f"{name}/v_proj", x), config.kv_heads)
        if layer.rotary is not None:
            q = self.rotary(f"{name}/rotary_q", layer.rotary, q)
            k = self.rotary(f"{name}/rotary_k", layer.rotary, k)
        keys = self.op("Concat", f"{name}/Concat", past[0], k, output=present[0], axis=2)
        values = self.op("Concat", f"{name}/Concat_1", past[1], v, output=present[1], axis=2)
        scale = self.constant(config.scale or config.head_dim**-0.5, np.float32)
        q = self.op("Mul", f"{name}/Mul", q, scale)
        grouped = config.heads != config.kv_heads
        if grouped:
            shape = self.constant([0, config.kv_heads, -1, config.head_dim])
            q = self.op("Reshape", f"{name}/Reshape_3", q, shape)
        keys = self.op("Transpose", f"{name}/Transpose_3", keys, perm=[0, 1, 3, 2])
        scores = self.op("MatMul", f"{name}/MatMul", q, keys)
        scores = self.soft_cap(f"{name}/soft_cap", scores, config.score_cap)
        scores = self.op("Add", f"{name}/Add", scores, self.masks[layer.window])
        scores = self.op("Softmax", f"{name}/Softmax", scores, axis=-1)
        y = self.op("MatMul", f"{name}/MatMul_1", scores, values)
        if grouped:
            shape = self.constant([0, config.heads, -1, config.head_dim])
            y = self.op("Reshape", f"{name}/Reshape_4", y, shape)
        y = self.op("Transpose", f"{name}/Transpose_4", y, perm=[0, 2, 1, 3])
        width = self.constant([0, 0, config.heads * config.head_dim])
        y = self.op("Reshape", f"{name}/Reshape_5", y, width)
        return self.linear(f"{name}/o_proj", y)

    def mlp(self, name: str, x: ir.Value) -> ir.Value:
        gate = self.linear(f"{name}/gate_proj", x)
        gate = ACTIVATIONS[self.config.activation](self, f"{name}/act_fn", gate)
        hidden = self.op("Mul", f"{name}/Mul", gate, self.linear(f"{name}/up_proj", x))
        return self.linear(f"{name}/down_proj", hidden)

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
        capped = self.config.logit_cap > 0
        y = self.head_product(x, None if capped else logits)
        self.soft_cap("/lm_head/soft_cap", y, self.config.logit_cap, logits)

    def head_product(self, x: ir.Value, output: ir.Value | None) -> ir.Value:
        weight = _HEAD if _HEAD in self.initializers else _EMBEDDING
        if weight in self.packed:
            return self.packed_op("BlockMatMul", "/lm_head/MatMul", x, weight, output=output)
        table = self.initializers[weight]
        if weight == _EMBEDDING:
            table = self.op("Transpose", "/lm_head/Transpose", table, perm=[1, 0])
        return self.op("MatMul", "/lm_head/MatMul", x, table, output=output)


def _value(name: str, dtype: ir.DataType, *shape: Any) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
