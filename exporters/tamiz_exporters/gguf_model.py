"""What a GGUF file's metadata and tensors mean: decoder shape, Hugging Face config, weights.

GGUF stores a weight as ``[N, K]``; the graph wants ``[K, N]``. In llama files the rows of q and k
are permuted so that rotary pairs are neighbours (2i, 2i+1); the graph pairs i with i + R/2.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from tamiz.api import TamizError
from tamiz_exporters import gguf_rope
from tamiz_exporters.decoder_config import DecoderConfig, LayerAttention, Packed
from tamiz_exporters.gguf_architectures import ARCHITECTURES, MISSING
from tamiz_exporters.gguf_file import GgufFile, GgufTensor
from tamiz_exporters.gguf_hyperparameters import Hyperparameters
from tamiz_exporters.gguf_rope import Rope
from tamiz_ops.formats import Format, gguf_format, pack_blocks

#: Metadata that changes the arithmetic in ways the graph does not have; 0 or absence is harmless.
_UNSUPPORTED = (
    "expert_count",
    "attention.scale",
    "attention.max_alibi_bias",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
)
#: Tensors beside the text model: pictures and sound, and heads that predict tokens further ahead.
_BESIDE = re.compile(r"(?:v|a|mm)\.|.*\.nextn\.")
#: Gemma 3 of this many layers divides scores by the square root of hidden size / heads.
_GEMMA3_27B_LAYERS = 62
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Weight:
    """Where a weight of the graph lies in the file.

    Attributes:
        target: Its name in transformers.
        tensor: The tensor.
        rows: The tensor's rows that it has, in their order; None for all as they are.
        embedding: Whether rows are looked up in it: then it is ``[V, H]`` in the graph.
    """

    target: str
    tensor: GgufTensor
    rows: np.ndarray | None = None
    embedding: bool = False


class GgufModel:
    """A decoder in a GGUF file.

    Attributes:
        file: The checked file.
        architecture: Value of `general.architecture`.
        config: The decoder's shape.
        vocabulary: V, rows of the embedding.
        context: Longest sequence the model was made for, in tokens.
    """

    def __init__(self, file: GgufFile) -> None:
        """Reads the hyperparameters.

        Args:
            file: The checked file.

        Raises:
            TamizError: If the architecture is unknown or a hyperparameter is missing or absurd.
        """
        self.file = file
        self.architecture = file.get("general.architecture", str)
        if self.architecture not in ARCHITECTURES:
            lack = MISSING.get(self.architecture)
            found = self.architecture + (f" (not supported: {lack})" if lack else "")
            file.fail("general.architecture", found, f"one of {', '.join(ARCHITECTURES)}")
        self.traits = ARCHITECTURES[self.architecture]
        self.of = of = Hyperparameters(file, self.architecture)
        for key in _UNSUPPORTED:
            if value := of.given(key):
                of.reject(key, value, "0 or no such key")
        self.hidden = of.positive("embedding_length")
        self.ffn = of.positive("feed_forward_length")
        self.vocabulary = of.tensor("token_embd.weight", (None, self.hidden)).shape[0]
        heads = of.positive("attention.head_count")
        kv_heads = of.positive("attention.head_count_kv", heads)
        if heads % kv_heads:
            of.reject("attention.head_count_kv", kv_heads, f"a divisor of {heads}")
        head_dim = of.positive("attention.key_length", max(1, self.hidden // heads))
        if (value_dim := of.positive("attention.value_length", head_dim)) != head_dim:
            of.reject("attention.value_length", value_dim, f"{head_dim}, as for keys")
        # Before anything of that size is made: a damaged head count must not cost memory.
        if self.traits.fused:
            of.tensor("blk.0.attn_qkv.weight", ((heads + 2 * kv_heads) * head_dim, self.hidden))
        else:
            of.tensor("blk.0.attn_q.weight", (heads * head_dim, self.hidden))
        self.rope = Rope(of, head_dim)
        self.context = self.rope.context
        layers = self._layers()
        scale = 0.0
        if self.architecture == "gemma3" and len(layers) == _GEMMA3_27B_LAYERS:
            scale = (self.hidden / heads) ** -0.5
        self.config = DecoderConfig(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            epsilon=of.number("attention.layer_norm_rms_epsilon"),
            layers=layers,
            scale=scale,
            embedding_scale=self.hidden**0.5 if self.traits.scales_embedding else 1.0,
            activation=self.traits.activation,
        )

    def weights(self) -> list[Weight]:
        """Returns where the graph's weights lie, under Hugging Face's names.

        Raises:
            TamizError: If a tensor is missing, has another shape, or belongs to nothing.
        """
        used: set[str] = {"rope_freqs.weight", gguf_rope.SHORT, gguf_rope.LONG}
        weights = list(self._weights(used))
        beside = [name for name in self.file.tensors if _BESIDE.match(name)]
        if beside:
            _log.warning(
                "%s: %d tensors are ignored, such as %s: they are no part of the text model",
                self.file.path,
                len(beside),
                beside[0],
            )
        if left := [name for name in self.file.tensors if name not in used | {*beside}]:
            self.file.fail(
                f"tensor {left[0]}", "the tensor", f"none but those of {self.architecture}"
            )
        return weights

    def tensors(self, stored: bool = False) -> dict[str, ir.TensorProtocol | Packed]:
        """Returns `weights` for the graph; each is read when it is written.

        Args:
            stored: Keep matrices in the file's formats; those without a format and vectors are
                float32. Otherwise all are.
        """
        found: dict[str, ir.TensorProtocol | Packed] = {}
        unknown = set()
        for weight in self.weights():
            tensor, format = weight.tensor, gguf_format(weight.tensor.type.name)
            if stored and format and len(tensor.shape) == 2:
                found[weight.target] = self._packed(weight, format)
            else:
                found[weight.target] = self._lazy(weight)
                if stored and len(tensor.shape) == 2 and tensor.type.name != "F32":
                    unknown.add(tensor.type.name)
        if unknown:
            _log.warning(
                "%s: tensors of type %s become float32, as no weight format holds them",
                self.file.path,
                " and ".join(sorted(unknown)),
            )
        return found

    def description(self) -> dict[str, Any]:
        """Returns what the file says of its origin and quantisation, such as its imatrix."""
        kept = ("general.", "quantize.")
        return {
            key: value
            for key, value in self.file.metadata.items()
            if key.startswith(kept) and isinstance(value, str | int | list)
        }

    def hf_config(self) -> dict[str, Any]:
        """Returns what ``config.json`` holds, in Hugging Face's terms.

        Frequencies scaled by ``rope_freqs.weight`` (llama 3) are in the graph, not in here.
        """
        config = self.config
        out: dict[str, Any] = {
            "architectures": [self.traits.model_class],
            "model_type": self.traits.model_type,
            "attention_bias": "blk.0.attn_q.bias" in self.file.tensors,
            "attention_dropout": 0.0,
            "head_dim": config.head_dim,
            "hidden_act": "silu" if config.activation == "silu" else "gelu_pytorch_tanh",
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": self.ffn,
            "max_position_embeddings": self.context,
            "mlp_bias": "blk.0.ffn_up.bias" in self.file.tensors,
            "num_attention_heads": config.heads,
            "num_hidden_layers": len(config.layers),
            "num_key_value_heads": config.kv_heads,
            "rms_norm_eps": config.epsilon,
            "rope_scaling": self.rope.scaling,
            "rope_theta": self.rope.base,
            "tie_word_embeddings": "output.weight" not in self.file.tensors,
            "torch_dtype": "float32",
            "use_cache": True,
            "vocab_size": self.vocabulary,
        }
        if self.rope.dimensions != config.head_dim:
            out["partial_rotary_factor"] = self.rope.dimensions / config.head_dim
        if window := max(layer.window for layer in config.layers):
            out["sliding_window"] = window
            out["layer_types"] = [
                "sliding_attention" if layer.window else "full_attention" for layer in config.layers
            ]
        return out

    def _layers(self) -> tuple[LayerAttention, ...]:
        """How each layer attends."""
        of, traits = self.of, self.traits
        count = of.positive("block_count")
        if f"blk.{count - 1}.ffn_norm.weight" not in self.file.tensors:
            of.reject("block_count", count, "as many layers as the file has")
        window = of.positive("attention.sliding_window", 1) if self._has_window() else 0
        if window >= self.context:
            window = 0
        rotary = self.rope.scaled()
        local = self.rope.local(traits.local_rope_base) if traits.local_rope_base else rotary
        layers = []
        for number in range(1, count + 1):
            sees_all = not window or (traits.global_every and number % traits.global_every == 0)
            turns = not traits.no_rope_every or number % traits.no_rope_every
            layers.append(
                LayerAttention(
                    (rotary if sees_all else local) if turns else None, 0 if sees_all else window
                )
            )
        return tuple(layers)

    def _has_window(self) -> bool:
        window = self.of.given("attention.sliding_window")
        if window and self.traits.global_every is None:
            self.of.reject("attention.sliding_window", window, "0 or no such key")
        return bool(window)

    def _weights(self, used: set[str]) -> Iterator[Weight]:
        def find(
            target: str, name: str, shape: tuple[int, ...], rows: np.ndarray | None = None
        ) -> Weight:
            used.add(name)
            return Weight(target, self.of.tensor(name, shape), rows)

        embedding = self.of.tensor("token_embd.weight", (self.vocabulary, self.hidden))
        used.add(embedding.name)
        yield Weight("model.embed_tokens.weight", embedding, embedding=True)
        for layer in range(len(self.config.layers)):
            source, target = f"blk.{layer}", f"model.layers.{layer}"
            for name, shape in self._shapes().items():
                stored, stored_shape, rows = self._stored(name, shape)
                tensor = f"{source}.{stored}.weight"
                if name.endswith(("q_norm", "k_norm")) and tensor not in self.file.tensors:
                    continue
                name = f"{target}.{self.traits.names[name]}"
                yield find(f"{name}.weight", tensor, stored_shape, rows)
                bias = f"{source}.{stored}.bias"
                if len(shape) == 2 and bias in self.file.tensors:
                    yield find(f"{name}.bias", bias, stored_shape[:1], rows)
        yield find("model.norm.weight", "output_norm.weight", (self.hidden,))
        if "output.weight" in self.file.tensors:
            yield find("lm_head.weight", "output.weight", (self.vocabulary, self.hidden))

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of a layer's weights."""
        config, hidden, ffn = self.config, self.hidden, self.ffn
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        matrices = {
            "attn_q": (q, hidden),
            "attn_k": (kv, hidden),
            "attn_v": (kv, hidden),
            "attn_output": (hidden, q),
            "ffn_gate": (ffn, hidden),
            "ffn_up": (ffn, hidden),
            "ffn_down": (hidden, ffn),
        }
        norms = {"attn_q_norm": (config.head_dim,), "attn_k_norm": (config.head_dim,)}
        return {
            name: matrices.get(name) or norms.get(name, (hidden,)) for name in self.traits.names
        }

    def _stored(
        self, name: str, shape: tuple[int, ...]
    ) -> tuple[str, tuple[int, ...], np.ndarray | None]:
        """Returns the tensor that holds a layer's weight, that tensor's shape, and which rows."""
        if self.traits.pairs and name in ("attn_q", "attn_k"):
            return name, shape, half_split(shape[0], self.config.head_dim, self.rope.dimensions)
        if self.traits.fused:
            for tensor, parts in (
                ("attn_qkv", ("attn_q", "attn_k", "attn_v")),
                ("ffn_up", ("ffn_gate", "ffn_up")),
            ):
                if name in parts:
                    sizes = [self._shapes()[part][0] for part in parts]
                    begin = sum(sizes[: parts.index(name)])
                    rows = np.arange(begin, begin + shape[0])
                    return tensor, (sum(sizes), *shape[1:]), rows
        return name, shape, None

    def _packed(self, weight: Weight, format: Format) -> Packed:
        """Wraps a matrix in the format that the file stores it in."""
        tensor, rows = weight.tensor, weight.rows
        n, k = len(tensor.data) if rows is None else len(rows), tensor.shape[1]

        def read() -> ir.TensorProtocol:
            data = tensor.data if rows is None else tensor.data[rows]
            try:
                return ir.Tensor(pack_blocks(format, data, k))
            except ValueError as error:
                where = f"{self.file.path}: tensor {tensor.name}"
                raise TamizError(f"{where}: {error}") from error

        shape = ir.Shape(format.packed_shape(n, k))
        return Packed(ir.LazyTensor(read, ir.DataType.UINT8, shape), format.name, n, k)

    def _lazy(self, weight: Weight) -> ir.LazyTensor:
        """Wraps a weight; a linear layer's comes out as ``[K, N]``."""
        tensor, rows = weight.tensor, weight.rows
        linear = len(tensor.shape) == 2 and not weight.embedding

        def read() -> ir.TensorProtocol:
            values = tensor.dequantize(rows)
            if not np.isfinite(values).all():
                self.file.fail(f"tensor {tensor.name}", "NaN or infinity", "finite values")
            return ir.Tensor(np.ascontiguousarray(values.T) if linear else values)

        shape = tensor.shape if rows is None else (len(rows), *tensor.shape[1:])
        return ir.LazyTensor(read, ir.DataType.FLOAT, ir.Shape(shape[::-1] if linear else shape))


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
