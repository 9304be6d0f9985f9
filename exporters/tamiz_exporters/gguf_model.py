"""What a GGUF file's metadata means: decoder shape, Hugging Face config, names of the weights."""

from __future__ import annotations

import re
from typing import Any

from tamiz_exporters.architectures import ARCHITECTURES, MISSING, SOFT_CAPS
from tamiz_exporters.decoder_config import DecoderConfig, LayerAttention
from tamiz_exporters.decoder_weights import DecoderWeights, Names
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_hyperparameters import Hyperparameters
from tamiz_exporters.gguf_rope import Rope

#: Metadata that changes the arithmetic in ways the graph does not have; 0 or absence is harmless.
_UNSUPPORTED = (
    "expert_count",
    "attention.scale",
    "attention.max_alibi_bias",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
)
#: Tensors beside the text model: pictures and sound, and heads that predict tokens further ahead.
_BESIDE = re.compile(r"(?:v|a|mm)\.|.*\.nextn\.")
#: Tensors that `Rope` reads.
_ROTARY = re.compile(r"rope_(?:freqs|factors_short|factors_long)\.weight")
_FUSED = {
    "attn_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "ffn_up": ("mlp.gate_proj", "mlp.up_proj"),
}
#: Models of so many layers, 27B, divide scores by the square root of hidden size / heads.
_SCALED_BY_HIDDEN = {"gemma2": 46, "gemma3": 62}


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
        if len(layers) == _SCALED_BY_HIDDEN.get(self.architecture):
            scale = (self.hidden / heads) ** -0.5
        score_cap, logit_cap = self._soft_caps()
        self.config = DecoderConfig(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            epsilon=of.number("attention.layer_norm_rms_epsilon"),
            layers=layers,
            scale=scale,
            score_cap=score_cap,
            logit_cap=logit_cap,
            embedding_scale=self.hidden**0.5 if self.traits.scales_embedding else 1.0,
            activation=self.traits.activation,
        )

    def weights(self) -> DecoderWeights:
        """Returns what reads the weights."""
        names = Names(
            "token_embd.weight",
            "output_norm.weight",
            "output.weight",
            "blk.{}",
            self.traits.names,
            _FUSED if self.traits.fused else {},
            ignored=_ROTARY,
            beside=_BESIDE,
        )
        return DecoderWeights(
            self.file,
            names,
            self.config,
            self.hidden,
            self.ffn,
            self.vocabulary,
            self.architecture,
            rotary_pairs=self.rope.dimensions if self.traits.pairs else 0,
        )

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
        if self.traits.soft_caps:
            out |= dict(zip(SOFT_CAPS, (config.score_cap, config.logit_cap), strict=True))
            out["query_pre_attn_scalar"] = round(
                config.scale**-2 if config.scale else config.head_dim
            )
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
        window = self._window()
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

    def _window(self) -> int:
        """Keys that a query sees in the layers with a window; 0 where no layer has one."""
        window = self.of.given("attention.sliding_window")
        if window and self.traits.global_every is None:
            self.of.reject("attention.sliding_window", window, "0 or no such key")
        if window is None:
            return self.traits.window
        return self.of.positive("attention.sliding_window") if window else 0

    def _soft_caps(self) -> tuple[float, float]:
        """The soft caps of scores and of logits; 0 for none."""
        defaults = self.traits.soft_caps
        if defaults is None:
            for key in SOFT_CAPS:
                if value := self.of.given(key):
                    self.of.reject(key, value, "0 or no such key")
            return 0.0, 0.0
        scores, logits = map(self.of.number, SOFT_CAPS, defaults)
        return scores, logits
