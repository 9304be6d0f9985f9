"""The dense ONNX graph of an embedder or reranker that was made of a decoder.

Its layers are those of `decoder_graph`, without a cache and without a head. Tokens see those before
them, or with bidirectional attention (EmbeddingGemma) all of their text, of a window W those with a
distance below W. Padding is on the right, so a position is the column of a token. An embedder gives
hidden states; a reranker gives logits of the last token of each text.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from tamiz.api import DOMAIN, OPSET_VERSION
from tamiz_exporters.decoder_config import DecoderConfig, Packed
from tamiz_exporters.decoder_graph import OPSET, DecoderGraph
from tamiz_exporters.graph_builder import typed_value
from tamiz_exporters.mask_graph import Masks

_FLOAT_MIN = float(np.finfo(np.float32).min)
_SIZE = ("batch_size", "sequence_length")


def build_text_decoder(
    config: DecoderConfig,
    hidden: int,
    weights: Mapping[str, ir.TensorProtocol | Packed],
    score: ir.TensorProtocol | None = None,
) -> ir.Model:
    """Builds the graph.

    Args:
        config: The decoder's shape.
        hidden: H, width of the residual stream.
        weights: See `decoder_graph.build_decoder`.
        score: What makes logits of a hidden state, ``[H, labels]``; None where there are none.

    Returns:
        The model; inputs ``input_ids, attention_mask``, output ``last_hidden_state`` ``[B, S, H]``,
        or ``logits`` ``[B, labels]``.
    """
    return _TextDecoder(config, hidden, weights, score).build()


class _TextDecoder(DecoderGraph):
    def __init__(
        self,
        config: DecoderConfig,
        hidden: int,
        weights: Mapping[str, ir.TensorProtocol | Packed],
        score: ir.TensorProtocol | None,
    ) -> None:
        super().__init__(config, weights)
        self.hidden, self.score = hidden, score

    def build(self) -> ir.Model:
        ids = typed_value("input_ids", ir.DataType.INT64, *_SIZE)
        self.attention_mask = typed_value("attention_mask", ir.DataType.INT64, *_SIZE)
        length = self.op("Squeeze", "/Squeeze", self.op("Shape", "/Shape", ids, start=1))
        self.column = self.op("Range", "/Range", self.constant(0), length, self.constant(1))
        self.position_ids = self.op("Unsqueeze", "/Unsqueeze", self.column, self.constant([0]))
        x = self.begin(ids)
        for layer in range(len(self.config.layers)):
            x = self.layer(layer, x, [], [])
        x = self.norm("/model/norm", x)
        if self.score is None:
            output = typed_value("last_hidden_state", ir.DataType.FLOAT, *_SIZE, self.hidden)
            self.op("Identity", "/output", x, output=output)
        else:
            labels = self.score.shape[1]
            output = typed_value("logits", ir.DataType.FLOAT, _SIZE[0], labels)
            weight = self.initialize("score.weight", self.score)
            self.op("MatMul", "/score/MatMul", self.last_tokens(x), weight, output=output)
        graph = ir.Graph(
            [ids, self.attention_mask],
            [output],
            nodes=self.nodes,
            initializers=tuple(self.initializers.values()),
            opset_imports={"": OPSET, **({DOMAIN: OPSET_VERSION} if self.packed else {})},
            name="main_graph",
        )
        return ir.Model(graph, ir_version=8, producer_name="tamiz")

    def last_tokens(self, x: ir.Value) -> ir.Value:
        """Of each row the hidden state of its last token, ``[B, H]``."""
        name, one = "/score", self.constant([1])
        tokens = self.op("ReduceSum", f"{name}/ReduceSum", self.attention_mask, one, keepdims=1)
        last = self.op("Sub", f"{name}/Sub", tokens, one)
        return self.op("GatherND", f"{name}/GatherND", x, last, batch_dims=1)

    def attention_masks(self, ids: ir.Value) -> Masks:
        group = self.config.heads // self.config.kv_heads
        query = self.column
        if group > 1:
            query = self.op("Tile", "/mask/Tile", query, self.constant([group]))
        query = self.op("Unsqueeze", "/mask/Unsqueeze", query, self.constant([1]))
        ahead = self.op("Sub", "/mask/Sub", self.column, query)
        given = self.op("Cast", "/mask/Cast", self.attention_mask, to=ir.DataType.BOOL)
        given = self.op("Unsqueeze", "/mask/Unsqueeze_1", given, self.constant([1, 2]))
        masks: Masks = {}
        for window in dict.fromkeys(at.window for at in self.config.attentions):
            name, seen = f"/mask.{window}", given
            if not self.config.bidirectional:
                before = self.op("LessOrEqual", f"{name}/causal", ahead, self.constant(0))
                seen = self.op("And", f"{name}/And", seen, before)
            if window:
                far = self.op("Abs", f"{name}/Abs", ahead)
                near = self.op("Less", f"{name}/Less", far, self.constant(window))
                seen = self.op("And", f"{name}/And_1", seen, near)
            shown, hidden = (self.constant(number, np.float32) for number in (0.0, _FLOAT_MIN))
            masks[window, group] = self.op("Where", f"{name}/Where", seen, shown, hidden)
        return masks
