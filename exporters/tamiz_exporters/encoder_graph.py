"""The dense ONNX graph of a BERT-like encoder, with optimum's interface.

For every layer, with x the residual stream and norm the LayerNorm:

    q, k, v = x·Wq, x·Wk, x·Wv                               (+ biases)
    x       = norm(x + softmax(q·Kᵀ / sqrt(D) + bias + mask)·V·Wo)
    x       = norm(x + f(x·Wu)·Wd)

Optional parts: norms before the blocks (ModernBERT), RMSNorm and scores without a scale (T5),
rotary embedding, a window, a bias by distance (MPNet, T5), scores between contents and distances
(DeBERTa), a gated feed-forward block, and a head that makes logits of the first token or of the
mean.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from tamiz.api import DOMAIN, OPSET_VERSION
from tamiz_exporters.activations import ACTIVATIONS
from tamiz_exporters.decoder_config import Packed
from tamiz_exporters.encoder_config import EncoderConfig, EncoderLayer, Head, Positions
from tamiz_exporters.graph_builder import GraphBuilder, typed_value
from tamiz_exporters.rotary_graph import rotary_table, rotate

OPSET = 18
_FLOAT_MIN = float(np.finfo(np.float32).min)
_INT64, _FLOAT = ir.DataType.INT64, ir.DataType.FLOAT


def build_encoder(
    config: EncoderConfig, weights: Mapping[str, ir.TensorProtocol | Packed]
) -> ir.Model:
    """Builds the graph.

    Args:
        config: The encoder's shape.
        weights: Tensors under the names of `encoder_weights`.

    Returns:
        The model; inputs ``input_ids, attention_mask`` and, where there are kinds of tokens,
        ``token_type_ids``; the output is ``last_hidden_state`` ``[B, S, H]``, or with a head
        ``logits`` ``[B, labels]``.
    """
    return _Encoder(config, weights).build()


class _Encoder(GraphBuilder):
    def __init__(
        self, config: EncoderConfig, weights: Mapping[str, ir.TensorProtocol | Packed]
    ) -> None:
        super().__init__(weights)
        self.config = config

    def build(self) -> ir.Model:
        config, size = self.config, ("batch_size", "sequence_length")
        self.ids = typed_value("input_ids", _INT64, *size)
        self.attention_mask = typed_value("attention_mask", _INT64, *size)
        inputs = [self.ids, self.attention_mask]
        if config.types > 1:
            inputs.append(typed_value("token_type_ids", _INT64, *size))
        sequence = self.op("Shape", "/Shape", self.ids, start=1)
        self.length = self.op("Squeeze", "/Squeeze", sequence)
        self.column = self.op("Range", "/Range", self.constant(0), self.length, self.constant(1))
        x = self.embeddings(inputs[-1])
        self.distances = self.distance()
        self.tables = self.rotary_tables()
        self.masks = {reach: self.mask(reach) for reach in {at.reach for at in config.layers}}
        self.shared_bias = self.bias_of_distance() if config.bias else None
        for number, layer in enumerate(config.layers):
            x = self.layer(f"/layers.{number}", layer, x)
        output = (
            typed_value("last_hidden_state", _FLOAT, *size, config.hidden)
            if config.head is None
            else typed_value("logits", _FLOAT, "batch_size", config.head.labels)
        )
        last = None if config.head is not None else output
        if config.norm_first:
            x = self.norm("/norm", x, "norm", last)
        elif last is not None:
            self.op("Identity", "/output", x, output=last)
        if config.head is not None:
            self.head(config.head, x, output)
        domain = {DOMAIN: OPSET_VERSION} if self.packed else {}
        graph = ir.Graph(
            inputs,
            [output],
            nodes=self.nodes,
            initializers=tuple(self.initializers.values()),
            opset_imports={"": OPSET, **domain},
            name="main_graph",
        )
        return ir.Model(graph, ir_version=8, producer_name="tamiz")

    def embeddings(self, types: ir.Value) -> ir.Value:
        config, name = self.config, "/embeddings"
        word = "embeddings.word.weight"
        if word in self.packed:
            x = self.packed_op("BlockGather", f"{name}/word/Gather", self.ids, word)
        else:
            x = self.op("Gather", f"{name}/word/Gather", self.initializers[word], self.ids, axis=0)
        if config.types > 1:
            table = self.initializers["embeddings.type.weight"]
            of_type = self.op("Gather", f"{name}/type/Gather", table, types, axis=0)
            x = self.op("Add", f"{name}/type/Add", x, of_type)
        elif "embeddings.type.weight" in self.initializers:
            row = self.initializers["embeddings.type.weight"]
            x = self.op("Add", f"{name}/type/Add", x, row)
        if config.positions is not Positions.NONE:
            table = self.initializers["embeddings.position.weight"]
            where = self.positions(name)
            row = self.op("Gather", f"{name}/position/Gather", table, where, axis=0)
            x = self.op("Add", f"{name}/position/Add", x, row)
        # ELECTRA and ALBERT norm before they widen, DeBERTa after it, T5 not at all.
        normed = self.known("embeddings.norm")
        if normed and not self.wide_norm():
            x = self.norm(f"{name}/norm", x, "embeddings.norm")
        if self.known("embeddings.projection"):
            x = self.linear(f"{name}/projection", x)
        return self.norm(f"{name}/norm", x, "embeddings.norm") if self.wide_norm() else x

    def wide_norm(self) -> bool:
        """Whether the norm of the embeddings comes after they are widened."""
        return self.config.disentangled is not None

    def positions(self, name: str) -> ir.Value:
        if self.config.positions is Positions.COLUMNS:
            return self.column
        padding = self.constant(self.config.padding)
        equal = self.op("Equal", f"{name}/position/Equal", self.ids, padding)
        token = self.op(
            "Cast",
            f"{name}/position/Cast",
            self.op("Not", f"{name}/position/Not", equal),
            to=_INT64,
        )
        count = self.op("CumSum", f"{name}/position/CumSum", token, self.constant(1))
        count = self.op("Mul", f"{name}/position/Mul", count, token)
        return self.op("Add", f"{name}/position/Add_1", count, padding)

    def distance(self) -> ir.Value:
        """key - query, ``[S, S]``."""
        query = self.op("Unsqueeze", "/distance/Unsqueeze", self.column, self.constant([1]))
        return self.op("Sub", "/distance/Sub", self.column, query)

    def rotary_tables(self) -> dict[object, tuple[ir.Value, ir.Value]]:
        rotaries = dict.fromkeys(at.rotary for at in self.config.layers if at.rotary is not None)
        if not rotaries:
            return {}
        row = self.op("Unsqueeze", "/model/Unsqueeze", self.column, self.constant([0]))
        return {r: rotary_table(self, r, n, row) for n, r in enumerate(rotaries)}

    def mask(self, reach: int) -> ir.Value:
        """What is added to the scores: 0, or -max at padding and out of reach."""
        name = f"/mask.{reach}" if reach else "/mask"
        seen = self.op("Cast", f"{name}/Cast", self.attention_mask, to=ir.DataType.BOOL)
        seen = self.op("Unsqueeze", f"{name}/Unsqueeze", seen, self.constant([1, 2]))
        if reach:
            far = self.op("Abs", f"{name}/Abs", self.distances)
            near = self.op("LessOrEqual", f"{name}/LessOrEqual", far, self.constant(reach))
            seen = self.op("And", f"{name}/And", seen, near)
        shown, hidden = (self.constant(number, np.float32) for number in (0.0, _FLOAT_MIN))
        return self.op("Where", f"{name}/Where", seen, shown, hidden)

    def bias_of_distance(self) -> ir.Value:
        """``[1, heads, S, S]``."""
        table = self.initializers["attention.bias"]
        assert table.shape is not None
        reach = int(table.shape[2]) // 2  # type: ignore[arg-type]
        distances = self.distances
        if self.config.positions is Positions.NONE:  # texts may be longer than the table reaches
            ends = self.constant(-reach), self.constant(reach)
            distances = self.op("Clip", "/bias/Clip", distances, *ends)
        column = self.op("Add", "/bias/Add", distances, self.constant(reach))
        return self.op("Gather", "/bias/Gather", table, column, axis=2)

    def layer(self, name: str, layer: EncoderLayer, x: ir.Value) -> ir.Value:
        weights = layer.weights
        if self.config.norm_first:
            first = f"{weights}.attn_norm"
            y = self.norm(f"{name}/attn_norm", x, first) if self.known(first) else x
            x = self.op("Add", f"{name}/Add", x, self.attention(name, layer, y))
            y = self.norm(f"{name}/ffn_norm", x, f"{weights}.ffn_norm")
            return self.op("Add", f"{name}/Add_1", x, self.feed_forward(name, weights, y))
        y = self.op("Add", f"{name}/Add", self.attention(name, layer, x), x)
        x = self.norm(f"{name}/attn_norm", y, f"{weights}.attn_norm")
        y = self.op("Add", f"{name}/Add_1", self.feed_forward(name, weights, x), x)
        return self.norm(f"{name}/ffn_norm", y, f"{weights}.ffn_norm")

    def known(self, module: str) -> bool:
        return f"{module}.weight" in self.initializers

    def norm(self, name: str, x: ir.Value, module: str, output: ir.Value | None = None) -> ir.Value:
        epsilon = self.config.epsilon
        if not self.config.centred:
            return self.rms_norm(name, x, epsilon, output)
        return self.layer_norm(name, x, epsilon, output, module)

    def heads(self, name: str, suffix: str, x: ir.Value, perm: list[int]) -> ir.Value:
        shape = self.constant([0, 0, self.config.heads, self.config.head_dim])
        x = self.op("Reshape", f"{name}/Reshape{suffix}", x, shape)
        return self.op("Transpose", f"{name}/Transpose{suffix}", x, perm=perm)

    def attention(self, name: str, layer: EncoderLayer, x: ir.Value) -> ir.Value:
        config, at, turned = self.config, f"{name}/attention", [0, 2, 1, 3]
        q, k, v = (
            self.linear(f"{name}/{part}", x, f"{layer.weights}.{part}")
            for part in ("attn_q", "attn_k", "attn_v")
        )
        q = self.heads(at, "_q", q, turned)
        if layer.rotary is None:
            k = self.heads(at, "_k", k, [0, 2, 3, 1])
        else:
            tables = self.tables[layer.rotary]
            q = rotate(self, f"{at}/rotary_q", tables, layer.rotary, config.head_dim, q)
            k = self.heads(at, "_k", k, turned)
            k = rotate(self, f"{at}/rotary_k", tables, layer.rotary, config.head_dim, k)
            k = self.op("Transpose", f"{at}/Transpose_1", k, perm=[0, 1, 3, 2])
        if config.scale != 1:
            q = self.op("Mul", f"{at}/Mul", q, self.constant(config.scale, np.float32))
        scores = self.op("MatMul", f"{at}/MatMul", q, k)
        if config.disentangled is not None:
            scores = self.disentangled(at, layer.weights, scores, q, k)
        if self.shared_bias is not None:
            scores = self.op("Add", f"{at}/Add_bias", scores, self.shared_bias)
        scores = self.op("Add", f"{at}/Add", scores, self.masks[layer.reach])
        scores = self.op("Softmax", f"{at}/Softmax", scores, axis=-1)
        y = self.op("MatMul", f"{at}/MatMul_1", scores, self.heads(at, "_v", v, turned))
        y = self.op("Transpose", f"{at}/Transpose", y, perm=turned)
        width = self.constant([0, 0, config.heads * config.head_dim])
        y = self.op("Reshape", f"{at}/Reshape", y, width)
        return self.linear(f"{name}/attn_o", y, f"{layer.weights}.attn_o")

    def disentangled(
        self, name: str, weights: str, scores: ir.Value, q: ir.Value, k: ir.Value
    ) -> ir.Value:
        """Adds q_i · Pk[δ(i, j)] and k_j · Pq[δ(i, j)]; q and the rows Pq are scaled."""
        assert self.config.disentangled is not None
        shape = self.op("Shape", f"{name}/Shape", scores)
        row = self.row_of_distance()
        for part in self.config.disentangled.parts:
            at = f"{name}/{part}"
            table = self.initializers[f"{weights}.{part}"]
            if part == "c2p":
                of_rows = self.op("MatMul", f"{at}/MatMul", q, table)
                index = self.op("Expand", f"{at}/Expand", row, shape)
                found = self.op("GatherElements", f"{at}/GatherElements", of_rows, index, axis=-1)
            else:
                key = self.op("Transpose", f"{at}/Transpose", k, perm=[0, 1, 3, 2])
                key = self.op("Mul", f"{at}/Mul", key, self.constant(self.config.scale, np.float32))
                of_rows = self.op("MatMul", f"{at}/MatMul", key, table)
                turned = self.op("Transpose", f"{at}/Transpose_1", row, perm=[1, 0])
                index = self.op("Expand", f"{at}/Expand", turned, shape)
                found = self.op("GatherElements", f"{at}/GatherElements", of_rows, index, axis=-1)
                found = self.op("Transpose", f"{at}/Transpose_2", found, perm=[0, 1, 3, 2])
            scores = self.op("Add", f"{at}/Add", scores, found)
        return scores

    def row_of_distance(self) -> ir.Value:
        """Which row of the table stands for a query and a key, ``[S, S]``; made once."""
        if not hasattr(self, "rows"):
            assert self.config.disentangled is not None
            buckets = self.config.disentangled.buckets
            table = self.initialize("attention.buckets", ir.tensor(buckets))
            middle = self.constant(len(buckets) // 2)
            column = self.op("Sub", "/buckets/Sub", middle, self.distances)
            self.rows = self.op("Gather", "/buckets/Gather", table, column, axis=0)
        return self.rows

    def feed_forward(self, name: str, weights: str, x: ir.Value) -> ir.Value:
        act = ACTIVATIONS[self.config.activation]
        if self.config.gated:
            gate = act(
                self, f"{name}/act", self.linear(f"{name}/ffn_gate", x, f"{weights}.ffn_gate")
            )
            up = self.linear(f"{name}/ffn_up", x, f"{weights}.ffn_up")
            y = self.op("Mul", f"{name}/ffn/Mul", gate, up)
        else:
            y = act(self, f"{name}/act", self.linear(f"{name}/ffn_up", x, f"{weights}.ffn_up"))
        return self.linear(f"{name}/ffn_down", y, f"{weights}.ffn_down")

    def head(self, head: Head, x: ir.Value, output: ir.Value) -> None:
        x = self.pooled(head, x)
        last = len(head.activations) - 1
        for number, activation in enumerate(head.activations):
            if number == last and head.norm:
                x = self.norm("/head/norm", x, "head.norm")
            x = self.linear(
                f"/head/{number}", x, f"head.{number}", output=output if number == last else None
            )
            if activation:
                x = ACTIVATIONS[activation](self, f"/head/{number}/act", x)

    def pooled(self, head: Head, x: ir.Value) -> ir.Value:
        """``[B, H]``."""
        if head.pooling == "cls":
            return self.op("Gather", "/head/Gather", x, self.constant(0), axis=1)
        mask = self.op("Cast", "/head/Cast", self.attention_mask, to=_FLOAT)
        count = self.op("ReduceSum", "/head/ReduceSum", mask, self.constant([1]), keepdims=1)
        mask = self.op("Unsqueeze", "/head/Unsqueeze", mask, self.constant([2]))
        x = self.op("Mul", "/head/Mul", x, mask)
        x = self.op("ReduceSum", "/head/ReduceSum_1", x, self.constant([1]), keepdims=0)
        return self.op("Div", "/head/Div", x, count)
