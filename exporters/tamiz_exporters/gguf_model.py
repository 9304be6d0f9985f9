"""What a GGUF file's metadata and tensors mean: decoder shape, Hugging Face config, weights.

GGUF stores a weight as ``[N, K]``; the graph wants ``[K, N]``. In llama files the rows of q and k
are permuted so that rotary pairs are neighbours (2i, 2i+1); the graph pairs i with i + R/2.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import onnx_ir as ir

from tamiz_exporters.decoder_graph import DecoderConfig
from tamiz_exporters.gguf_file import GgufFile, GgufTensor

#: Architecture in GGUF → model class in transformers.
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
#: Metadata that changes the arithmetic in ways the graph does not have; 0 or absence is harmless.
_UNSUPPORTED = (
    "expert_count",
    "attention.sliding_window",
    "attention.scale",
    "attention.max_alibi_bias",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
)
_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}


class GgufModel:
    """A decoder in a GGUF file.

    Attributes:
        file: The checked file.
        architecture: ``llama``, ``qwen2`` or ``qwen3``.
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
            self.file.fail("general.architecture", self.architecture, " or ".join(ARCHITECTURES))
        for key in _UNSUPPORTED:
            if value := file.metadata.get(f"{self.architecture}.{key}"):
                self._reject(key, value, "0 or no such key")
        self.hidden = self._positive("embedding_length")
        self.ffn = self._positive("feed_forward_length")
        self.context = self._positive("context_length")
        self.vocabulary = self._tensor("token_embd.weight", (None, self.hidden)).shape[0]
        heads = self._positive("attention.head_count")
        kv_heads = self._positive("attention.head_count_kv", heads)
        if heads % kv_heads:
            self._reject("attention.head_count_kv", kv_heads, f"a divisor of {heads}")
        head_dim = self._positive("attention.key_length", max(1, self.hidden // heads))
        if (value_dim := self._positive("attention.value_length", head_dim)) != head_dim:
            self._reject("attention.value_length", value_dim, f"{head_dim}, as for keys")
        self.rotary_dim = self._positive("rope.dimension_count", head_dim)
        if self.rotary_dim > head_dim or self.rotary_dim % 2:
            self._reject(
                "rope.dimension_count",
                self.rotary_dim,
                f"an even number up to {head_dim}",
            )
        # Before anything of that size is made: a damaged head count must not cost memory.
        self._tensor("blk.0.attn_q.weight", (heads * head_dim, self.hidden))
        self.rope_base = self._number("rope.freq_base", 10000.0)
        self.rope_scaling = self._rope_scaling()
        self.config = DecoderConfig(
            layers=self._positive("block_count"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            epsilon=self._number("attention.layer_norm_rms_epsilon"),
            inverse_frequency=self._inverse_frequency(),
        )

    def weights(self) -> dict[str, ir.TensorProtocol]:
        """Returns the graph's weights under Hugging Face's names, dequantised when written.

        Raises:
            TamizError: If a tensor is missing, has another shape, or belongs to nothing.
        """
        out: dict[str, ir.TensorProtocol] = {}
        used = {"rope_freqs.weight"}

        def add(target: str, name: str, shape: tuple[int, ...], needed: bool = True) -> None:
            if needed or name in self.file.tensors:
                used.add(name)
                out[target] = self._lazy(self._tensor(name, shape))

        add("model.embed_tokens.weight", "token_embd.weight", (self.vocabulary, self.hidden))
        for layer in range(self.config.layers):
            source, target = f"blk.{layer}", f"model.layers.{layer}"
            for name, shape in self._shapes().items():
                linear, needed = len(shape) == 2, not name.endswith(("q_norm", "k_norm"))
                add(f"{target}.{_NAMES[name]}.weight", f"{source}.{name}.weight", shape, needed)
                if linear:
                    bias = f"{source}.{name}.bias"
                    add(f"{target}.{_NAMES[name]}.bias", bias, shape[:1], needed=False)
        add("model.norm.weight", "output_norm.weight", (self.hidden,))
        add("lm_head.weight", "output.weight", (self.vocabulary, self.hidden), needed=False)
        if left := [name for name in self.file.tensors if name not in used]:
            self.file.fail(
                f"tensor {left[0]}", "the tensor", f"none but those of {self.architecture}"
            )
        return out

    def hf_config(self) -> dict[str, Any]:
        """Returns what ``config.json`` holds, in Hugging Face's terms.

        Frequencies scaled by ``rope_freqs.weight`` (llama 3) are in the graph, not in here.
        """
        config = self.config
        out: dict[str, Any] = {
            "architectures": [ARCHITECTURES[self.architecture]],
            "model_type": self.architecture,
            "attention_bias": "blk.0.attn_q.bias" in self.file.tensors,
            "attention_dropout": 0.0,
            "head_dim": config.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": self.ffn,
            "max_position_embeddings": self.context,
            "mlp_bias": "blk.0.ffn_up.bias" in self.file.tensors,
            "num_attention_heads": config.heads,
            "num_hidden_layers": config.layers,
            "num_key_value_heads": config.kv_heads,
            "rms_norm_eps": config.epsilon,
            "rope_scaling": self.rope_scaling,
            "rope_theta": self.rope_base,
            "tie_word_embeddings": "output.weight" not in self.file.tensors,
            "torch_dtype": "float32",
            "use_cache": True,
            "vocab_size": self.vocabulary,
        }
        if self.rotary_dim != config.head_dim:
            out["partial_rotary_factor"] = self.rotary_dim / config.head_dim
        return out

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of a layer's weights as stored."""
        config, hidden, ffn = self.config, self.hidden, self.ffn
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        return {
            "attn_norm": (hidden,),
            "attn_q": (q, hidden),
            "attn_k": (kv, hidden),
            "attn_v": (kv, hidden),
            "attn_q_norm": (config.head_dim,),
            "attn_k_norm": (config.head_dim,),
            "attn_output": (hidden, q),
            "ffn_norm": (hidden,),
            "ffn_gate": (ffn, hidden),
            "ffn_up": (ffn, hidden),
            "ffn_down": (hidden, ffn),
        }

    def _tensor(self, name: str, shape: tuple[int | None, ...]) -> GgufTensor:
        wanted = " x ".join("any" if dim is None else str(dim) for dim in shape)
        if (tensor := self.file.tensors.get(name)) is None:
            self.file.fail(f"tensor {name}", "no such tensor", f"shape {wanted}")
        fits = len(tensor.shape) == len(shape) and all(
            want in (None, dim) for dim, want in zip(tensor.shape, shape, strict=True)
        )
        if not fits:
            self.file.fail(f"tensor {name}", " x ".join(map(str, tensor.shape)), f"shape {wanted}")
        if not tensor.readable:
            self.file.fail(f"tensor {name}: type", tensor.type.name, "a type that gguf dequantises")
        return tensor

    def _lazy(self, tensor: GgufTensor) -> ir.LazyTensor:
        """Wraps a stored tensor; a linear layer's weight comes out as ``[K, N]``."""
        interleaved = self.architecture == "llama" and ".attn_q." in tensor.name
        interleaved |= self.architecture == "llama" and ".attn_k." in tensor.name
        linear = len(tensor.shape) == 2 and tensor.name != "token_embd.weight"

        def read() -> ir.TensorProtocol:
            values = tensor.dequantize()
            if not np.isfinite(values).all():
                self.file.fail(f"tensor {tensor.name}", "NaN or infinity", "finite values")
            if interleaved:
                values = half_split_rows(values, self.config.head_dim, self.rotary_dim)
            return ir.Tensor(np.ascontiguousarray(values.T) if linear else values)

        shape = tensor.shape[::-1] if linear else tensor.shape
        return ir.LazyTensor(read, ir.DataType.FLOAT, ir.Shape(shape))

    def _positive(self, key: str, default: int | None = None) -> int:
        value = self.file.get(f"{self.architecture}.{key}", int, default)
        if value <= 0:
            self._reject(key, value, "a positive number")
        return int(value)

    def _number(self, key: str, default: float | None = None) -> float:
        value = self.file.get(f"{self.architecture}.{key}", float, default)
        if not (np.isfinite(value) and value > 0):
            self._reject(key, value, "a positive number")
        # The shortest decimal of the stored float32: 1e-05, not 9.999999747378752e-06.
        return float(str(np.float32(value)))

    def _reject(self, key: str, found: Any, expected: str) -> NoReturn:
        self.file.fail(f"{self.architecture}.{key}", found, expected)

    def _rope_scaling(self) -> dict[str, Any] | None:
        kind = self.file.get(f"{self.architecture}.rope.scaling.type", str, "none")
        if kind == "linear":
            return {"rope_type": "linear", "factor": self._number("rope.scaling.factor")}
        if kind != "none":
            self._reject("rope.scaling.type", kind, "none or linear")
        return None

    def _inverse_frequency(self) -> np.ndarray:
        """Returns ``base^(-2i/R)``, divided by the linear factor and by `rope_freqs.weight`."""
        exponent = np.arange(0, self.rotary_dim, 2) / self.rotary_dim
        frequency = self.rope_base**-exponent
        if self.rope_scaling:
            frequency = frequency / self.rope_scaling["factor"]
        if "rope_freqs.weight" in self.file.tensors:
            factors = self._tensor("rope_freqs.weight", (self.rotary_dim // 2,)).dequantize()
            if not (np.isfinite(factors) & (factors > 0)).all():
                self.file.fail("tensor rope_freqs.weight", "other values", "positive numbers")
            frequency = frequency / factors
        return np.asarray(frequency, np.float32)


def half_split_rows(w: np.ndarray, head_dim: int, rotary_dim: int) -> np.ndarray:
    """Moves the rotary rows of every head from pairs (2i, 2i+1) to pairs (i, i + R/2).

    Args:
        w: ``[heads·D, ...]``.
        head_dim: D.
        rotary_dim: R, the first rows of each head that rotate.

    Returns:
        The same rows in the other order.
    """
    order = np.arange(head_dim)
    order[:rotary_dim] = order[:rotary_dim].reshape(rotary_dim // 2, 2).T.ravel()
    return w.reshape(-1, head_dim, *w.shape[1:])[:, order].reshape(w.shape)
