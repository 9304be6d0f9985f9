"""The weights of an encoder in a source: which tensor holds each; read when they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tamiz_exporters.decoder_config import Packed
from tamiz_exporters.encoder_architectures import EncoderArchitecture
from tamiz_exporters.encoder_config import EncoderConfig
from tamiz_exporters.graph_weights import Weight, graph_tensors
from tamiz_exporters.stored_tensor import AnyTensor, Source, StoredTensor, find_tensor

#: What TensorFlow called the weight and the bias of a norm.
_OLD = {"weight": "gamma", "bias": "beta"}


@dataclass(frozen=True)
class EncoderWeights:
    """The weights of one encoder.

    Attributes:
        source: The checked source.
        prefix: What the names of its tensors begin with.
        traits: The architecture.
        config: The encoder's shape.
        width: Of the embedding.
        ffn: Width of the feed-forward block.
        vocabulary: Rows of the embedding.
        positions: Rows of the table of positions; None where there is none.
        bias_buckets: Rows of the table of the bias by distance; see `EncoderConfig.bias`.
    """

    source: Source
    prefix: str
    traits: EncoderArchitecture
    config: EncoderConfig
    width: int
    ffn: int
    vocabulary: int
    positions: int | None
    bias_buckets: np.ndarray | None

    def tensors(self, stored: bool = False) -> dict[str, ir.TensorProtocol | Packed]:
        """Returns the weights for the graph; each is read when it is written.

        Args:
            stored: Keep matrices in the source's formats.

        Raises:
            TamizError: If a tensor is missing or has another shape.
        """
        found = graph_tensors(self.source, self._weights(), stored)
        found.update(self._computed())
        return found

    def _weights(self) -> Iterator[Weight]:
        yield from self._embeddings()
        for layer in dict.fromkeys(layer.weights for layer in self.config.layers):
            yield from self._layer(layer)
        yield from self._head()

    def _embeddings(self) -> Iterator[Weight]:
        config, modules = self.config, self.traits.modules
        tables: dict[str, int | None] = {
            "embeddings.word": self.vocabulary,
            "embeddings.position": self.positions,
            "embeddings.type": config.types or None,
        }
        for name, rows in tables.items():
            if name in modules and rows:
                tensor = self._find(f"{self.prefix}{modules[name]}.weight", rows, self.width)
                packable = name == "embeddings.word"
                yield Weight(f"{name}.weight", tensor, embedding=True, packable=packable)
        hidden = config.hidden
        if "embeddings.norm" in modules:
            module, narrow = self.prefix + modules["embeddings.norm"], config.disentangled is None
            yield from self._norm("embeddings.norm", module, self.width if narrow else hidden)
        projection = "embeddings.projection"
        if self.width != hidden or self.traits.model_type == "albert":
            yield from self._linear(
                projection, self.prefix + modules[projection], hidden, self.width
            )
        if "norm" in modules:
            yield from self._norm("norm", self.prefix + modules["norm"], hidden)

    def _layer(self, layer: str) -> Iterator[Weight]:
        base = self._layer_base(layer)
        for part in self.traits.parts:
            target = f"{layer}.{part}"
            n, k = self._shape(part)
            module, total, rows = self._stored(part, n)
            if not part.endswith("norm"):
                yield from self._linear(target, f"{base}.{module}", n, k, total, rows)
            elif self._has(f"{base}.{module}") or not self._may_lack(layer, part):
                yield from self._norm(target, f"{base}.{module}", n)

    def _may_lack(self, layer: str, part: str) -> bool:
        """The first layer of ModernBERT has no norm, as the embeddings end in one."""
        return self.traits.norm_first and (layer, part) == ("layers.0", "attn_norm")

    def _layer_base(self, layer: str) -> str:
        """What the names of a layer's tensors begin with."""
        number, _, inner = layer.removeprefix("layers.").partition(".")
        inside = f".albert_layers.{inner}" if inner else ""
        return f"{self.prefix}{self.traits.layer.format(number)}{inside}"

    def _shape(self, part: str) -> tuple[int, int]:
        hidden, ffn, inner = self.config.hidden, self.ffn, self.config.heads * self.config.head_dim
        shapes = {
            **dict.fromkeys(("attn_q", "attn_k", "attn_v"), (inner, hidden)),
            "attn_o": (hidden, inner),
            **dict.fromkeys(("ffn_up", "ffn_gate"), (ffn, hidden)),
            "ffn_down": (hidden, ffn),
        }
        return shapes.get(part, (hidden, hidden))

    def _stored(self, part: str, rows: int) -> tuple[str, int, range | None]:
        """The module that holds a part, its rows, and which of them."""
        for module, parts in self.traits.fused.items():
            if part in parts:
                begin = parts.index(part) * rows
                return module, len(parts) * rows, range(begin, begin + rows)
        return self.traits.parts[part], rows, None

    def _head(self) -> Iterator[Weight]:
        head, names = self.config.head, self.traits.head
        if head is None or names is None:
            return
        hidden, last = self.config.hidden, len(names.modules) - 1
        for number, module in enumerate(names.modules):
            n = head.labels if number == last else hidden
            for weight in self._linear(f"head.{number}", module, n, hidden):
                yield Weight(weight.target, weight.tensor, packable=False)
        if names.norm:
            yield from self._norm("head.norm", names.norm, hidden)

    def _linear(
        self,
        target: str,
        module: str,
        n: int,
        k: int,
        total: int | None = None,
        rows: range | None = None,
    ) -> Iterator[Weight]:
        tensor = self._find(f"{module}.weight", total or n, k)
        order = None if rows is None else np.arange(rows.start, rows.stop)
        yield Weight(f"{target}.weight", tensor, order)
        if self._has(module, "bias"):
            yield Weight(f"{target}.bias", self._find(f"{module}.bias", total or n), order)

    def _norm(self, target: str, module: str, width: int) -> Iterator[Weight]:
        for part, old in _OLD.items():
            name = f"{module}.{part}"
            if name not in self.source.tensors and f"{module}.{old}" in self.source.tensors:
                name = f"{module}.{old}"
            if part == "weight" or name in self.source.tensors:
                yield Weight(f"{target}.{part}", self._find(name, width))

    def _has(self, module: str, part: str = "weight") -> bool:
        names = (f"{module}.{part}", f"{module}.{_OLD[part]}")
        return any(name in self.source.tensors for name in names)

    def _find(self, name: str, *shape: int) -> StoredTensor:
        return find_tensor(self.source, name, shape)

    def _computed(self) -> Iterator[tuple[str, ir.TensorProtocol]]:
        """Tables that the graph has in another form than the source."""
        heads, config = self.config.heads, self.config
        if self.bias_buckets is not None:
            buckets, name = self.bias_buckets, f"{self.prefix}{self.traits.bias}.weight"
            table = find_tensor(self.source, name, (None, heads))
            if table.shape[0] <= buckets.max():
                self.source.fail(f"tensor {name}", table.shape[0], f"{buckets.max() + 1} rows")
            shape = (1, heads, len(buckets))
            yield "attention.bias", _lazy(shape, lambda: table.dequantize()[buckets].T[None])
        if config.disentangled is not None:
            rows, name = 2 * config.disentangled.span, f"{self.prefix}encoder.rel_embeddings.weight"
            positions = self._find(name, rows, config.hidden)
            for layer in config.layers:
                for part in config.disentangled.parts:
                    shape3 = (heads, config.head_dim, rows)
                    read = self._positions_of(layer.weights, part, positions)
                    yield f"{layer.weights}.{part}", _lazy(shape3, read)

    def _positions_of(
        self, layer: str, part: str, positions: StoredTensor
    ) -> Callable[[], np.ndarray]:
        """What a head's keys (c2p) or queries (p2c) of positions are, ``[heads, D, rows]``."""
        base, content = f"{self._layer_base(layer)}.attention.self", {"c2p": "key", "p2c": "query"}
        own = f"{base}.pos_{content[part]}_proj"
        module = own if self._has(own) else f"{base}.{content[part]}_proj"
        hidden = self.config.hidden
        weight = self._find(f"{module}.weight", hidden, hidden)
        bias = self._find(f"{module}.bias", hidden) if self._has(module, "bias") else None
        norm = dict[str, AnyTensor]()
        for each in (
            self._norm("norm", f"{self.prefix}encoder.LayerNorm", hidden)
            if self._has(f"{self.prefix}encoder.LayerNorm")
            else ()
        ):
            norm[each.target] = each.tensor

        def read() -> np.ndarray:
            x = positions.dequantize()
            if norm:
                x = x - x.mean(axis=1, keepdims=True)
                x /= np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(self.config.epsilon))
                x = x * norm["norm.weight"].dequantize() + norm["norm.bias"].dequantize()
            y = x @ weight.dequantize().T + (0 if bias is None else bias.dequantize())
            found: np.ndarray = y.reshape(len(y), self.config.heads, -1).transpose(1, 2, 0)
            return found

        return read


def _lazy(shape: tuple[int, ...], read: Callable[[], np.ndarray]) -> ir.LazyTensor:
    def tensor() -> ir.TensorProtocol:
        return ir.Tensor(np.ascontiguousarray(read(), np.float32))

    return ir.LazyTensor(tensor, ir.DataType.FLOAT, ir.Shape(shape))
