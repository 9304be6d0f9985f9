"""The dense ONNX graph of a Llama-like decoder, with optimum's interface and names.

For every layer, with x the residual stream, and norm(x) = w · x / sqrt(mean(x²) + ε):

    q, k, v = norm(x)·Wq, norm(x)·Wk, norm(x)·Wv        (+ biases)
    q, k    = rotary(q), rotary(k)                      rotary(u) = u·cos θ + rotate_half(u)·sin θ
    x       = x + softmax(q·Kᵀ / sqrt(D) + mask)·V·Wo   K = [past, k], V = [past, v]
    x       = x + (silu(norm(x)·Wg) · norm(x)·Wu)·Wd

The query heads that share a key/value head are one matrix of G·S rows, so keys and values are
never repeated in memory; the mask has G·S rows to match and is made once for all layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

OPSET = 18
_FLOAT_MIN = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder.

    Attributes:
        layers: Number of layers.
        heads: Number of query heads.
        kv_heads: Number of key/value heads; divides `heads`.
        head_dim: Length D of one head.
        epsilon: ε of the norms.
        inverse_frequency: ``float32 [R/2]``, radians per position of the rotary pairs; R ≤ D.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    inverse_frequency: np.ndarray


def build_decoder(config: DecoderConfig, weights: Mapping[str, ir.TensorProtocol]) -> ir.Model:
    """Builds the graph.

    Args:
        config: The decoder's shape.
        weights: Tensors under Hugging Face's names. Weights of linear layers are ``[K, N]``, the
            embedding is ``[V, H]``. Biases, ``q_norm``/``k_norm`` and ``lm_head.weight`` are
            optional: without the last the head is the transposed embedding.

    Returns:
        The model; inputs ``input_ids, attention_mask, position_ids, past_key_values.N.key/value``,
        outputs ``logits, present.N.key/value``.
    """
    return _Decoder(config, weights).build()


class _Decoder:
    def __init__(self, config: DecoderConfig, weights: Mapping[str, ir.TensorProtocol]) -> None:
        self.config = config
        self.vocabulary = weights["model.embed_tokens.weight"].shape[0]
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}
        for name, tensor in weights.items():
            self.initialize(name, tensor)

    def build(self) -> ir.Model:
        config = self.config
        length = "past_sequence_length + sequence_length"
        ids = _value("input_ids", ir.DataType.INT64, "batch_size", "sequence_length")
        self.attention_mask = _value("attention_mask", ir.DataType.INT64, "batch_size", length)
        self.position_ids = _value(
            "position_ids", ir.DataType.INT64, "batch_size", "sequence_length"
        )
        embedding = self.initializers["model.embed_tokens.weight"]
        inputs, outputs = [ids, self.attention_mask, self.position_ids], []
        x = self.op("Gather", "/model/embed_tokens/Gather", embedding, ids, axis=0)
        self.cos, self.sin = self.rotary_table()
        self.mask = self.causal_mask(ids)
        for layer in range(config.layers):
            past = [self.cache(f"past_key_values.{layer}.{part}") for part in ("key", "value")]
            present = [self.cache(f"present.{layer}.{part}", length) for part in ("key", "value")]
            inputs += past
            outputs += present
            x = self.layer(f"/model/layers.{layer}", x, past, present)
        x = self.norm("/model/norm", x)
        logits = _value(
            "logits", ir.DataType.FLOAT, "batch_size", "sequence_length", self.vocabulary
        )
        self.op("MatMul", "/lm_head/MatMul", x, self.head(embedding), output=logits)
        graph = ir.Graph(
            inputs,
            [logits, *outputs],
            nodes=self.nodes,
            initializers=tuple(self.initializers.values()),
            opset_imports={"": OPSET},
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

    def rotary_table(self) -> tuple[ir.Value, ir.Value]:
        """Returns cos θ and sin θ, ``[B, 1, S, R]``, θ = position · inverse frequency."""
        name = "/model/rotary_emb"
        frequency = self.initialize(
            "model.rotary_emb.inv_freq",
            ir.tensor(self.config.inverse_frequency, name="model.rotary_emb.inv_freq"),
        )
        position = self.op(
            "Unsqueeze", f"{name}/Unsqueeze", self.position_ids, self.constant([1, 3])
        )
        position = self.op("Cast", f"{name}/Cast", position, to=ir.DataType.FLOAT)
        angle = self.op("Mul", f"{name}/Mul", position, frequency)
        angle = self.op("Concat", f"{name}/Concat", angle, angle, axis=-1)
        return self.op("Cos", f"{name}/Cos", angle), self.op("Sin", f"{name}/Sin", angle)

    def causal_mask(self, ids: ir.Value) -> ir.Value:
        """Returns what is added to the scores, ``[B, 1, G·S, L]``: 0 where visible, else -max.

        Query i stands at position L - S + i of the mask and sees the keys up to itself.
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
        hidden = self.constant(_FLOAT_MIN, np.float32)
        return self.op("Where", "/model/Where", visible, self.constant(0.0, np.float32), hidden)

    def layer(
        self, name: str, x: ir.Value, past: list[ir.Value], present: list[ir.Value]
    ) -> ir.Value:
        attended = self.attention(
            f"{name}/self_attn", self.norm(f"{name}/input_layernorm", x), past, present
        )
        x = self.op("Add", f"{name}/Add", x, attended)
        hidden = self.mlp(f"{name}/mlp", self.norm(f"{name}/post_attention_layernorm", x))
        return self.op("Add", f"{name}/Add_1", x, hidden)

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

    def linear(self, name: str, x: ir.Value) -> ir.Value:
        y = self.op("MatMul", f"{name}/MatMul", x, self.weight(name))
        if f"{name[1:].replace('/', '.')}.bias" in self.initializers:
            y = self.op("Add", f"{name}/Add", self.weight(name, "bias"), y)
        return y

    def heads(self, name: str, suffix: str, x: ir.Value, count: int, norm: str = "") -> ir.Value:
        """Returns ``[B, S, count·D]`` as ``[B, count, S, D]``, each head normed where asked."""
        shape = self.constant([0, 0, count, self.config.head_dim])
        x = self.op("Reshape", f"{name}/Reshape{suffix}", x, shape)
        if norm and f"{name[1:].replace('/', '.')}.{norm}.weight" in self.initializers:
            x = self.norm(f"{name}/{norm}", x)
        return self.op("Transpose", f"{name}/Transpose{suffix}", x, perm=[0, 2, 1, 3])

    def rotary(self, name: str, x: ir.Value) -> ir.Value:
        """Rotates the first R of D channels; channel i pairs with channel i + R/2."""
        half = len(self.config.inverse_frequency)
        rest = None
        if 2 * half < self.config.head_dim:
            rest = self.slice(f"{name}/Slice_rest", x, 2 * half, self.config.head_dim)
            x = self.slice(f"{name}/Slice_rotary", x, 0, 2 * half)
        low = self.slice(f"{name}/Slice", x, 0, half)
        high = self.slice(f"{name}/Slice_1", x, half, 2 * half)
        turned = self.op("Neg", f"{name}/Neg", high)
        turned = self.op("Concat", f"{name}/Concat", turned, low, axis=-1)
        straight = self.op("Mul", f"{name}/Mul", x, self.cos)
        turned = self.op("Mul", f"{name}/Mul_1", turned, self.sin)
        y = self.op("Add", f"{name}/Add", straight, turned)
        if rest is not None:
            y = self.op("Concat", f"{name}/Concat_rest", y, rest, axis=-1)
        return y

    def slice(self, name: str, x: ir.Value, begin: int, end: int) -> ir.Value:
        axis = self.constant([3])
        return self.op("Slice", name, x, self.constant([begin]), self.constant([end]), axis)

    def attention(
        self, name: str, x: ir.Value, past: list[ir.Value], present: list[ir.Value]
    ) -> ir.Value:
        config = self.config
        q = self.heads(name, "", self.linear(f"{name}/q_proj", x), config.heads, "q_norm")
        k = self.heads(name, "_1", self.linear(f"{name}/k_proj", x), config.kv_heads, "k_norm")
        v = self.heads(name, "_2", self.linear(f"{name}/v_proj", x), config.kv_heads)
        q, k = self.rotary(f"{name}/rotary_q", q), self.rotary(f"{name}/rotary_k", k)
        keys = self.op("Concat", f"{name}/Concat", past[0], k, output=present[0], axis=2)
        values = self.op("Concat", f"{name}/Concat_1", past[1], v, output=present[1], axis=2)
        scale = self.constant(config.head_dim**-0.5, np.float32)
        q = self.op("Mul", f"{name}/Mul", q, scale)
        grouped = config.heads != config.kv_heads
        if grouped:
            shape = self.constant([0, config.kv_heads, -1, config.head_dim])
            q = self.op("Reshape", f"{name}/Reshape_3", q, shape)
        keys = self.op("Transpose", f"{name}/Transpose_3", keys, perm=[0, 1, 3, 2])
        scores = self.op("MatMul", f"{name}/MatMul", q, keys)
        scores = self.op("Add", f"{name}/Add", scores, self.mask)
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
        sigmoid = self.op("Sigmoid", f"{name}/act_fn/Sigmoid", gate)
        gate = self.op("Mul", f"{name}/act_fn/Mul", gate, sigmoid)
        hidden = self.op("Mul", f"{name}/Mul", gate, self.linear(f"{name}/up_proj", x))
        return self.linear(f"{name}/down_proj", hidden)

    def head(self, embedding: ir.Value) -> ir.Value:
        if "lm_head.weight" in self.initializers:
            return self.initializers["lm_head.weight"]
        return self.op("Transpose", "/lm_head/Transpose", embedding, perm=[1, 0])


def _value(name: str, dtype: ir.DataType, *shape: Any) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
