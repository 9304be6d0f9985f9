"""The graph of a decoder with several residual streams: Gemma 3n.

With E the embedding, p_l the inputs of layers of `gemma_graph`, n streams x_i, and
norm(x) = w · x / sqrt(mean(x²) + ε), norms of different weights:

    x_0   = √H E,  x_i = |x_0| x_0·A_i / |x_0·A_i|              |u| = sqrt(mean(u²))

Alternating updates (AltUp, Baykal et al. 2023): a layer runs on a prediction of stream 0 alone, and
all streams take their part of what it finds:

    m(u)  = tanh(R·norm(u) / H)                                   n numbers of a token
    x'_j  = x_j + Σ_i C_ji x_i,  C = reshape(C'·m(x_0))           predicted
    f     = the layer of x'_0, below
    x_j   = x'_j + (1 + D·m(f))_j (f - x'_0)                      corrected
    x_j   = x_j + norm((gelu((s · x_0)·G_l) · p_l)·W_l)           j > 0

A layer has a path of low rank beside its attention (LAuReL, Menghani et al. 2024), and some layers
keep of gates what is above a quantile of a normal distribution (mean μ and deviation σ of a token's
gates, z for the quantile):

    h = norm(x'_0),  g = (x'_0 + norm(attention(h)) + h + norm(h·L·L')) / √2
    f = g + norm((gelu(max(u·Wg - μ - z σ, 0)) · u·Wu)·Wd),  u = norm(g)

Last layers read the keys and values of a layer before them. Behind the last one

    y = mean(x_0, |x_0| x_i·U_i / |x_i·U_i|)

The small products with R, C' and D have the weight on their left and are made for each token alone,
so that their bits do not depend on the tokens beside it.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tamiz_exporters.activations import gated
from tamiz_exporters.decoder_config import Streams
from tamiz_exporters.gemma_graph import GemmaGraph
from tamiz_exporters.mixer_graph import mixed

_LEAST = 1e-5  # of a mean square that is divided by
_ALTUP = "/model/altup"


class StreamGraph(GemmaGraph):
    """The graph of a decoder with several residual streams in the making."""

    @property
    def shape(self) -> Streams:
        """Its streams."""
        assert self.config.streams is not None
        return self.config.streams

    def begin(self, ids: ir.Value) -> ir.Value:
        """The streams ``[B, S, n, H]``; makes the inputs of layers, too."""
        x = super().begin(ids)
        size, streams = self._size(f"{_ALTUP}/size", x), [x]
        for number in range(self.shape.count - 1):
            at = f"/model/altup_projections.{number}"
            streams.append(self._sized(at, self.linear(at, x), size))
        return self._stacked(f"{_ALTUP}/streams", streams)

    def layer(
        self, number: int, x: ir.Value, past: list[ir.Value], present: list[ir.Value]
    ) -> ir.Value:
        """The streams after a layer."""
        name = f"/model/layers.{number}"
        streams = self._predicted(f"{name}/altup", x)
        active = self._first(f"{name}/altup/active", streams)
        found = self._found(name, number, active, past, present)
        moved = self.op("Sub", f"{name}/altup/Sub", found, active)
        moved = self.op("Unsqueeze", f"{name}/altup/Unsqueeze", moved, self.constant([2]))
        parts = self._routed(f"{name}/altup/correct", f"{name}/altup", found)
        parts = self._by_token(f"{name}/altup/correction_coefs", parts)
        parts = self.op("Add", f"{name}/altup/Add_one", parts, self.constant(1.0, np.float32))
        moved = self.op("Mul", f"{name}/altup/Mul", moved, parts)
        streams = self.op("Add", f"{name}/altup/Add_1", streams, moved)
        return self._with_input(name, number, streams)

    def end(self, x: ir.Value) -> ir.Value:
        """The one stream that the head reads."""
        shape, parts = self.shape, []
        size = self._size(f"{_ALTUP}/last_size", self._first(f"{_ALTUP}/last", x))
        for number in range(shape.count):
            part = self._part(f"{_ALTUP}/last.{number}", x, number)
            if number:
                at = f"/model/altup_unembed_projections.{number - 1}"
                part = self._sized(at, self.linear(at, part), size)
            parts.append(part)
        total = parts[0]
        for number, part in enumerate(parts[1:], 1):
            total = self.op("Add", f"{_ALTUP}/Add_last.{number}", total, part)
        return self.times(f"{_ALTUP}/mean", total, 1 / shape.count)

    def mlp(self, name: str, number: int, x: ir.Value) -> ir.Value:
        """What the feed-forward block adds to what it reads."""
        gate, up = (self.linear(f"{name}/{part}_proj", x) for part in ("gate", "up"))
        if (deviations := self.shape.deviations[number]) is not None:
            gate = self._above(f"{name}/sparse", gate, deviations)
        return self.linear(f"{name}/down_proj", gated(self, name, self.config.activation, gate, up))

    def _found(
        self,
        name: str,
        number: int,
        x: ir.Value,
        past: list[ir.Value],
        present: list[ir.Value],
    ) -> ir.Value:
        """f of a layer."""
        h = self.norm(f"{name}/input_layernorm", x)
        y = mixed(self, number, h, past, present)
        y = self.norm(f"{name}/post_attention_layernorm", y)
        low = self.linear(f"{name}/laurel/linear_left", h)
        low = self.linear(f"{name}/laurel/linear_right", low)
        low = self.norm(f"{name}/laurel/post_laurel_norm", low)
        low = self.op("Add", f"{name}/laurel/Add", h, low)
        x = self.op("Add", f"{name}/Add", x, y)
        x = self.op("Add", f"{name}/Add_laurel", x, low)
        x = self.times(f"{name}/halved", x, 0.5**0.5)
        y = self.mlp(f"{name}/mlp", number, self.norm(f"{name}/pre_feedforward_layernorm", x))
        y = self.norm(f"{name}/post_feedforward_layernorm", y)
        return self.op("Add", f"{name}/Add_1", x, y)

    def _predicted(self, name: str, x: ir.Value) -> ir.Value:
        """The predicted streams."""
        count = self.shape.count
        parts = self._routed(f"{name}/predict", name, self._first(f"{name}/first", x))
        parts = self._by_token(f"{name}/prediction_coefs", parts)
        square = self.constant([0, 0, count, count])
        parts = self.op("Reshape", f"{name}/Reshape", parts, square)
        moved = self.op("MatMul", f"{name}/MatMul", parts, x)
        return self.op("Add", f"{name}/Add", x, moved)

    def _with_input(self, name: str, number: int, streams: ir.Value) -> ir.Value:
        """The streams, of which all but the first take the input of the layer."""
        x = self._first(f"{name}/altup/corrected", streams)
        if self.has(f"{name}/altup/correct_output_scale"):
            scale = self.weight(f"{name}/altup/correct_output_scale")
            x = self.op("Mul", f"{name}/altup/Mul_scale", x, scale)
        x = self.met(name, number, x)
        x = self.op("Unsqueeze", f"{name}/per_layer/Unsqueeze", x, self.constant([2]))
        others = [[[0.0], *[[1.0]] * (self.shape.count - 1)]]
        x = self.op("Mul", f"{name}/per_layer/Mul_1", x, self.constant(others, np.float32))
        return self.op("Add", f"{name}/per_layer/Add", streams, x)

    def _routed(self, name: str, module: str, x: ir.Value) -> ir.Value:
        """m, ``[B, S, n, 1]``."""
        x = self.rms_norm(f"{module}/router_norm", x, self.config.epsilon, scope=name)
        x = self.times(f"{name}/scaled", x, 1 / self.shape.hidden)
        x = self.op("Unsqueeze", f"{name}/Unsqueeze", x, self.constant([3]))
        return self.op("Tanh", f"{name}/Tanh", self._by_token(f"{module}/modality_router", x, name))

    def _by_token(self, module: str, x: ir.Value, name: str = "") -> ir.Value:
        """The product of a weight ``[N, K]`` with ``[B, S, K, 1]``."""
        return self.op("MatMul", f"{name or module}/MatMul", self.weight(module), x)

    def _above(self, name: str, x: ir.Value, deviations: float) -> ir.Value:
        """max(x - μ - z σ, 0), z = `deviations`."""
        axis = self.constant([-1])
        mean = self.op("ReduceMean", f"{name}/ReduceMean", x, axis, keepdims=1)
        size = self._size(f"{name}/deviation", self.op("Sub", f"{name}/Sub", x, mean))
        cut = self.op("Add", f"{name}/Add", mean, self.times(f"{name}/cut", size, deviations))
        return self.op("Relu", f"{name}/Relu", self.op("Sub", f"{name}/Sub_1", x, cut))

    def _size(self, name: str, x: ir.Value, least: float = 0.0) -> ir.Value:
        """|x|, ``[B, S, 1]``; the root of `least` where that is more."""
        square = self.op("Mul", f"{name}/Mul", x, x)
        mean = self.op("ReduceMean", f"{name}/ReduceMean", square, self.constant([-1]), keepdims=1)
        if least:
            mean = self.op("Max", f"{name}/Max", mean, self.constant(least, np.float32))
        return self.op("Sqrt", f"{name}/Sqrt", mean)

    def _sized(self, name: str, x: ir.Value, size: ir.Value) -> ir.Value:
        """x with another |x|."""
        own = self._size(f"{name}/size", x, _LEAST)
        x = self.op("Mul", f"{name}/Mul", x, size)
        return self.op("Div", f"{name}/Div", x, own)

    def _first(self, name: str, streams: ir.Value) -> ir.Value:
        """Stream 0, ``[B, S, H]``."""
        return self._part(name, streams, 0)

    def _part(self, name: str, streams: ir.Value, number: int) -> ir.Value:
        begin, end, axis = (self.constant([at]) for at in (number, number + 1, 2))
        part = self.op("Slice", f"{name}/Slice", streams, begin, end, axis)
        return self.op("Squeeze", f"{name}/Squeeze", part, axis)

    def _stacked(self, name: str, streams: list[ir.Value]) -> ir.Value:
        axis = self.constant([2])
        rows = [
            self.op("Unsqueeze", f"{name}/Unsqueeze.{number}", x, axis)
            for number, x in enumerate(streams)
        ]
        return self.op("Concat", f"{name}/Concat", *rows, axis=2)
