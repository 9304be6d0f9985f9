"""The weights of a decoder in a source: which tensor holds each, checked, and read when written.

Files store a weight as ``[N, K]``; the graph wants ``[K, N]``. In llama files of GGUF the rows of q
and k are permuted so that rotary pairs are neighbours (2i, 2i+1); the graph pairs i with i + R/2.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from tamiz_exporters.decoder_config import (
    DecoderConfig,
    DeltaNet,
    Mamba,
    Mixer,
    NoMixer,
    Packed,
    ShortConvolution,
    attention_of,
    mamba_of,
)
from tamiz_exporters.delta_net_weights import DeltaNames, delta_net_weights
from tamiz_exporters.expert_weights import ExpertNames, expert_weights
from tamiz_exporters.graph_weights import Weight, graph_tensors
from tamiz_exporters.input_weights import (
    GGUF_INPUTS,
    PartNames,
    input_weights,
    layer_input_weights,
)
from tamiz_exporters.latent_weights import LatentNames, latent_weights
from tamiz_exporters.mamba_weights import MambaNames, mamba_weights
from tamiz_exporters.recurrent_weights import find_taps
from tamiz_exporters.scan_weights import ScanNames, scan_weights
from tamiz_exporters.stored_tensor import Source, find_tensor
from tamiz_exporters.stream_weights import StreamNames, layer_weights, stream_weights
from tamiz_exporters.xielu_weights import xielu_weights

_NORMS_OF_HEADS = ("self_attn.q_norm", "self_attn.k_norm")
_KEYS_AND_VALUES = ("self_attn.k_proj", "self_attn.v_proj", "self_attn.k_norm")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Names:
    """How a source names the tensors of a decoder.

    Attributes:
        embedding: The embedding.
        norm: The last norm.
        head: The output's matrix; absent where it is the embedding.
        layer: What the names of layer 0, 1, … begin with, ``{}`` for the number.
        parts: A layer's weights: their names in transformers → in the source.
        fused: A layer's tensors that hold several weights → those weights' names in transformers.
        experts: How it names the weights of experts; None where no layer has any.
        latents: How it names the weights of latents; None where there are none.
        sinks: A layer's sinks of attention; empty for none.
        by_head: Whether a tensor of q, k and v has them for one head of keys after the other.
        taps: A layer's tensor with the weight of its convolution.
        delta: How it names the weights of gated delta nets; None where no layer has any.
        mamba: How it names the weights of selective state spaces; None where no layer has any.
        scan: Likewise of those of Mamba's first version.
        streams: How it names the weights of several residual streams; None where there is one.
        inputs: How it names the weights of inputs of layers.
        positions: The table of positions; empty: there is none.
        embedding_norm: The norm of the embedding; empty: there is none.
        activation: A layer's numbers of its activation; empty: there are none.
        ignored: Tensors that are no weights of the decoder, but known.
        beside: Tensors that are no part of the text model; a warning names one.
    """

    embedding: str
    norm: str
    head: str
    layer: str
    parts: Mapping[str, str]
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    experts: ExpertNames | None = None
    latents: LatentNames | None = None
    sinks: str = ""
    taps: str = ""
    delta: DeltaNames | None = None
    mamba: MambaNames | None = None
    scan: ScanNames | None = None
    by_head: bool = False
    streams: StreamNames | None = None
    inputs: PartNames = GGUF_INPUTS
    positions: str = ""
    embedding_norm: str = ""
    activation: str = ""
    ignored: re.Pattern[str] = re.compile(r"(?!)")
    beside: re.Pattern[str] = re.compile(r"(?!)")


@dataclass(frozen=True)
class DecoderWeights:
    """The weights of one decoder.

    Attributes:
        source: The checked source.
        names: How it names them.
        config: The decoder's shape.
        hidden: H, width of the residual stream.
        ffn: Width of the feed-forward block of each layer.
        vocabulary: V, rows of the embedding.
        of: What messages call the decoder, such as its architecture.
        rotary_pairs: R where rows of q and k lie as rotary pairs side by side; 0: they do not.
        norms_from_one: Whether weights of norms are stored less 1.
        norms_of_all_heads: Whether a norm of q or k is one of all its heads together.
        gated_heads: Whether the rows of q of each head are followed by those of the gate on what
            attention gives there.
        first_position: Row of the first position in their table.
        context: Longest sequence that the model was made for, in tokens.
        tied: Whether the head is the embedding, whatever the source holds; None: where it has none.
    """

    source: Source
    names: Names
    config: DecoderConfig
    hidden: int
    ffn: Sequence[int]
    vocabulary: int
    of: str
    rotary_pairs: int = 0
    norms_from_one: bool = False
    norms_of_all_heads: bool = False
    gated_heads: bool = False
    first_position: int = 0
    context: int = 0
    tied: bool | None = None

    def find(self) -> list[Weight]:
        """Returns where the graph's weights lie, under Hugging Face's names.

        Raises:
            TamizError: If a tensor is missing, has another shape, or belongs to nothing.
        """
        weights = list(self._weights())
        used = {name for weight in weights for name in weight.tensor.names} | {self.names.head}
        used |= set(self._of_sharing_layers())
        left = [name for name in self.source.tensors if name not in used]
        left = [name for name in left if not self.names.ignored.fullmatch(name)]
        beside = [name for name in left if self.names.beside.match(name)]
        if beside:
            _log.warning(
                "%s: %d tensors are ignored, such as %s: they are no part of the text model",
                self.source.path,
                len(beside),
                beside[0],
            )
        if foreign := [name for name in left if name not in beside]:
            self.source.fail(f"tensor {foreign[0]}", "the tensor", f"none but those of {self.of}")
        return weights

    def tensors(self, stored: bool = False) -> dict[str, ir.TensorProtocol | Packed]:
        """Returns the weights for the graph; each is read when it is written.

        Args:
            stored: Keep matrices in the source's formats; those without a format and vectors are
                float32. Otherwise all are.

        Raises:
            TamizError: As `find`.
        """
        return graph_tensors(self.source, self.find(), stored)

    def _weights(self) -> Iterator[Weight]:
        names, source, config, width = self.names, self.source, self.config, self.config.input_width
        embedding = find_tensor(source, names.embedding, (self.vocabulary, self.hidden))
        yield Weight("model.embed_tokens.weight", embedding, embedding=True)
        if names.positions:
            yield self._positions()
        if norm := names.embedding_norm:
            yield Weight("model.embed_norm.weight", find_tensor(source, norm, (self.hidden,)))
            yield from self._bias(norm, "model.embed_norm", self.hidden)
        streams = config.streams
        if streams is not None and names.streams is not None:
            yield from stream_weights(source, names.streams, streams)
        if width:
            count = len(config.layers)
            yield from input_weights(source, names.inputs, width, self.hidden, count)
        for layer in range(len(config.layers)):
            experts = config.experts
            mixed = experts is not None and layer in experts.layers
            if experts is not None and names.experts is not None and mixed:
                at, target = names.layer.format(layer), f"model.layers.{layer}.mlp"
                yield from expert_weights(source, names.experts, experts, self.hidden, at, target)
            if config.latent is not None and names.latents is not None:
                yield from latent_weights(
                    source,
                    names.latents,
                    config.latent,
                    config.heads,
                    self.hidden,
                    names.layer.format(layer),
                    f"model.layers.{layer}.self_attn",
                    bool(self.rotary_pairs),
                )
            if names.sinks:
                name = f"{names.layer.format(layer)}.{names.sinks}"
                sinks = find_tensor(source, name, (self.config.heads,))
                yield Weight(f"model.layers.{layer}.self_attn.sinks", sinks)
            yield from self._beside(layer)
            mixer = self.config.layers[layer]
            lacking = _lacking(config, mixer, mixed)
            yield from self._mixer(layer, mixer)
            for part, shape in self._shapes(layer).items():
                if part.startswith(lacking):
                    continue
                stored, stored_shape, rows = self._stored(layer, part, shape)
                name = f"{names.layer.format(layer)}.{stored}"
                if part in _NORMS_OF_HEADS and f"{name}.weight" not in source.tensors:
                    continue
                target = f"model.layers.{layer}.{part}"
                # A norm of Falcon-H1 has no such end in GGUF.
                whole = name if name in source.tensors else f"{name}.weight"
                tensor = find_tensor(source, whole, stored_shape)
                # Only now: a damaged size must not cost memory.
                rows = np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows
                added = float(self.norms_from_one and len(shape) == 1)
                yield Weight(f"{target}.weight", tensor, rows, added=added)
                biased = len(shape) == 2 or config.centred
                if biased and f"{name}.bias" in source.tensors:
                    bias = find_tensor(source, f"{name}.bias", stored_shape[:1])
                    yield Weight(f"{target}.bias", bias, rows)
        yield from self._last()

    def _positions(self) -> Weight:
        """The table of positions, ``[context, H]``."""
        first = self.first_position
        rows = (first + self.context, self.hidden)
        table = find_tensor(self.source, self.names.positions, rows)
        shown = np.arange(first, rows[0]) if first else None
        target = "model.embed_positions.weight"
        return Weight(target, table, shown, embedding=True, packable=False)

    def _beside(self, layer: int) -> Iterator[Weight]:
        """The weights of a layer for several streams, for its activation and for its input."""
        names, streams, width = self.names, self.config.streams, self.config.input_width
        at, target = names.layer.format(layer), f"model.layers.{layer}"
        if streams is not None and names.streams is not None:
            yield from layer_weights(self.source, names.streams, streams, at, target)
        if names.activation:
            yield from xielu_weights(
                self.source, f"{at}.{names.activation}", f"{target}.mlp.act_fn"
            )
        if width:
            sizes = width, self.hidden
            yield from layer_input_weights(self.source, names.inputs, *sizes, at, target)

    def _last(self) -> Iterator[Weight]:
        """The last norm, and the head."""
        names, source, config = self.names, self.source, self.config
        norm = find_tensor(source, names.norm, (self.hidden,))
        yield Weight("model.norm.weight", norm, added=float(self.norms_from_one))
        if config.centred:
            yield from self._bias(names.norm, "model.norm", self.hidden)
        if self.tied is False or (self.tied is None and names.head in source.tensors):
            head = find_tensor(source, names.head, (self.vocabulary, self.hidden))
            yield Weight("lm_head.weight", head)
            yield from self._bias(names.head, "lm_head", self.vocabulary)

    def _bias(self, weight: str, target: str, size: int) -> Iterator[Weight]:
        """The bias beside a weight, where the source has one."""
        name = f"{weight.removesuffix('weight')}bias"
        if name in self.source.tensors:
            yield Weight(f"{target}.bias", find_tensor(self.source, name, (size,)))

    def _of_sharing_layers(self) -> Iterator[str]:
        """Tensors of keys and values that no layer reads, as files have them, too."""
        for layer, mixer in enumerate(self.config.layers):
            attention = attention_of(mixer)
            if attention is not None and attention.shares is not None:
                at = self.names.layer.format(layer)
                stored = (self.names.parts[part] for part in _KEYS_AND_VALUES)
                yield from (f"{at}.{name}.weight" for name in stored)

    def _mixer(self, layer: int, mixer: Mixer) -> Iterator[Weight]:
        """The weights of a layer that mixes tokens by other means than attention."""
        if isinstance(mixer, ShortConvolution):
            yield self._taps(layer, mixer.taps)
        elif isinstance(mixer, DeltaNet) and self.names.delta is not None:
            at, target = self.names.layer.format(layer), f"model.layers.{layer}.linear_attn"
            yield from delta_net_weights(
                self.source, self.names.delta, mixer, self.hidden, at, target
            )
        elif isinstance(mixer, Mamba) and self.names.scan is not None:
            at, target = self.names.layer.format(layer), f"model.layers.{layer}.mamba"
            yield from scan_weights(self.source, self.names.scan, mixer, self.hidden, at, target)
        elif (mamba := mamba_of(mixer)) is not None and self.names.mamba is not None:
            at, target = self.names.layer.format(layer), f"model.layers.{layer}.mamba"
            yield from mamba_weights(self.source, self.names.mamba, mamba, self.hidden, at, target)

    def _taps(self, layer: int, taps: int) -> Weight:
        """The weight of a convolution, ``[H, L]``."""
        stored = f"{self.names.layer.format(layer)}.{self.names.taps}.weight"
        found = find_taps(self.source, stored, self.hidden, taps)
        target = f"model.layers.{layer}.conv.conv.weight"
        return Weight(target, found, embedding=True, packable=False)

    def _shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of a layer's weights."""
        config, hidden, ffn = self.config, self.hidden, self.ffn[layer]
        heads = config.heads_of(attention_of(config.layers[layer]))
        value_dim = config.latent.value_dim if config.latent else heads.size
        q, kv = config.heads * heads.size, heads.count * heads.size
        shapes: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, config.heads * value_dim),
            "self_attn.output_gate": (q, hidden),
            "mlp.gate_proj": (ffn, hidden),
            "mlp.up_proj": (ffn, hidden),
            "mlp.down_proj": (hidden, ffn),
            "self_attn.attn_sub_norm": (q,),
            "mlp.ffn_sub_norm": (ffn,),
            "conv.in_proj": (3 * hidden, hidden),
            "conv.out_proj": (hidden, hidden),
            "layer_scalar": (1,),
            **dict.fromkeys(_NORMS_OF_HEADS, (heads.size,)),
        }
        if self.norms_of_all_heads:
            shapes |= zip(_NORMS_OF_HEADS, ((q,), (kv,)), strict=True)
        return {name: shapes.get(name, (hidden,)) for name in self.names.parts}

    def _stored(
        self, layer: int, name: str, shape: tuple[int, ...]
    ) -> tuple[str, tuple[int, ...], np.ndarray | range | None]:
        """Returns the tensor that holds a layer's weight, that tensor's shape, and which rows."""
        if self.rotary_pairs and name in ("self_attn.q_proj", "self_attn.k_proj"):
            rows = half_split(shape[0], self.config.head_dim, self.rotary_pairs)
            return self.names.parts[name], shape, rows
        if self.gated_heads and name in ("self_attn.q_proj", "self_attn.output_gate"):
            pairs = np.arange(2 * shape[0]).reshape(-1, 2, self.config.head_dim)
            rows = pairs[:, int(name == "self_attn.output_gate")].ravel()
            return self.names.parts[name], (2 * shape[0], *shape[1:]), rows
        if tensor := tensor_with(name, self.names.fused):
            parts = self.names.fused[tensor]
            shapes = self._shapes(layer)
            sizes = [shapes[part][0] for part in parts]
            if self.names.by_head and name.startswith("self_attn."):
                of_keys = (self.config.kv_heads, -1, self.config.head_dim)
                heads = np.arange(sum(sizes)).reshape(of_keys)
                own = (slice(-2), slice(-2, -1), slice(-1, None))[parts.index(name)]
                return tensor, (sum(sizes), *shape[1:]), heads[:, own].ravel()
            begin = sum(sizes[: parts.index(name)])
            return tensor, (sum(sizes), *shape[1:]), range(begin, begin + shape[0])
        return self.names.parts[name], shape, None


def tensor_with(part: str, fused: Mapping[str, tuple[str, ...]]) -> str:
    """The tensor of several weights that holds a part of a layer; empty where none does."""
    return next((tensor for tensor, parts in fused.items() if part in parts), "")


def _lacking(config: DecoderConfig, mixer: Mixer, mixed: bool) -> tuple[str, ...]:
    """What the names of weights begin with that a layer lacks; `mixed`: it has experts."""
    no_block = config.one_block and not isinstance(mixer, NoMixer)
    attention = attention_of(mixer)
    shares = attention is not None and attention.shares is not None
    heads = None if attention is None else attention.heads
    lacking = {
        "self_attn.": attention is None,
        **dict.fromkeys(_KEYS_AND_VALUES, shares),
        "self_attn.v_proj": shares or (heads is not None and heads.one_projection),
        "conv.": not isinstance(mixer, ShortConvolution),
        "mlp.": no_block or (mixed and config.experts is not None and not config.experts.beside),
    }
    return tuple(name for name, lacks in lacking.items() if lacks)


def half_split(rows: int, head_dim: int, rotary_dim: int) -> np.ndarray:
    """Order of rows that moves rotary pairs from (2i, 2i+1) to (i, i + R/2) in every head.

    Args:
        rows: heads·D.
        head_dim: D.
        rotary_dim: R, the first rows of each head that rotate.

    Returns:
        ``int64 [rows]``, the old number of each new row.
    """
    order = np.arange(head_dim)
    order[:rotary_dim] = order[:rotary_dim].reshape(rotary_dim // 2, 2).T.ravel()
    return (np.arange(0, rows, head_dim)[:, None] + order).ravel()
