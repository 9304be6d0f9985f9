"""What a GGUF file's metadata means: decoder shape, Hugging Face config, names of the weights."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np

from tamiz_exporters.activations import GGUF_NAMES, chosen_activation
from tamiz_exporters.alibi_fields import gguf_slopes
from tamiz_exporters.architectures import SOFT_CAPS
from tamiz_exporters.chunk_fields import gguf_reach
from tamiz_exporters.decoder_config import (
    DecoderConfig,
    Experts,
    Heads,
    Latent,
    LayerAttention,
    Mixer,
    NoMixer,
    ShortConvolution,
)
from tamiz_exporters.decoder_weights import DecoderWeights, Names, tensor_with
from tamiz_exporters.delta_fields import gguf_attending, gguf_delta_net
from tamiz_exporters.expert_fields import gguf_experts
from tamiz_exporters.expert_weights import ExpertNames
from tamiz_exporters.gemma_fields import gguf_heads, sharing
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_hyperparameters import Hyperparameters
from tamiz_exporters.gguf_rope import Rope
from tamiz_exporters.gguf_traits import gguf_traits
from tamiz_exporters.latent_fields import MINICPM, depth_scales, gguf_latent
from tamiz_exporters.latent_weights import GGUF_LATENTS
from tamiz_exporters.llama4_architectures import WITHOUT_NORMS
from tamiz_exporters.mamba_fields import gguf_layers, gguf_mamba_attending, gguf_width
from tamiz_exporters.mamba_traits import ScanTraits
from tamiz_exporters.mamba_weights import GGUF_MAMBA
from tamiz_exporters.mixture_traits import GGUF_EXPERTS, gguf_expert_names
from tamiz_exporters.rotary_norms import norms_of_heads
from tamiz_exporters.scan_weights import GGUF_SCAN
from tamiz_exporters.stream_fields import gguf_shared, gguf_streams
from tamiz_exporters.stream_weights import GGUF_STREAMS
from tamiz_exporters.xielu_weights import with_xielu

#: Tensors beside the text model: pictures and sound, and heads that predict tokens further ahead.
_BESIDE = re.compile(r"(?:v|a|mm)\.|.*\.nextn\.")
#: Tensors that `Rope` reads.
_ROTARY = re.compile(r"rope_(?:freqs|factors_short|factors_long)\.weight")
_PARALLEL = "use_parallel_residual"
#: Factors on embedding and residuals, and what logits are divided by.
_MULTIPLIERS = ("embedding_scale", "residual_scale", "logit_scale")
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

    def __init__(self, file: GgufFile, activation: str | None = None) -> None:
        """Reads the hyperparameters.

        Args:
            file: The checked file.
            activation: Of the feed-forward block, where the file names none; None for the
                architecture's.

        Raises:
            TamizError: If the architecture is unknown or a hyperparameter is missing or absurd.
        """
        self.file = file
        self.architecture = file.get("general.architecture", str)
        self.of = of = Hyperparameters(file, self.architecture)
        self.traits = gguf_traits(of)
        of.check()
        self.hidden = of.positive("embedding_length")
        self.vocabulary = of.tensor("token_embd.weight", (None, self.hidden)).shape[0]
        heads = of.positive("attention.head_count") if self.traits.attends else 0
        self._wide: Heads | None = None
        latent = gguf_latent(of, heads, self.hidden) if self.traits.latent else None
        if latent is None:
            kv_heads, head_dim = self._head_sizes(heads)
        else:
            kv_heads, head_dim = 1, latent.cached
        rotates = latent.rope if latent else self._wide.size if self._wide else head_dim
        traits = self.traits.yarn_truncated, self.traits.stretches_scores
        self.rope = Rope(of, rotates, *traits, head_dim if self._wide else 0)
        layers = self._layers()
        self.context = gguf_reach(of, self.traits, layers, self.rope.context)
        unit = of.given("expert_count") != WITHOUT_NORMS
        score_cap, logit_cap = map(of.number, SOFT_CAPS, self.traits.soft_caps or (0.0, 0.0))
        self.config = DecoderConfig(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            epsilon=self._epsilon(),
            layers=layers,
            one_block=self._one_block,
            score_cap=score_cap,
            logit_cap=logit_cap,
            activation=self._activation(activation),
            experts=self._experts(layers),
            latent=latent,
            centred=self.traits.centred,
            parallel=self.traits.parallel and (of.given(_PARALLEL) is None or of.flag(_PARALLEL)),
            growth=self.rope.growth,
            slopes=gguf_slopes(of, self.traits, heads),
            **self._gemma(len(layers)),
            **norms_of_heads(self.traits, layers, unit, "rope.scaling.type", of.reject),
            **self._factors(heads, latent, len(layers)),
        )
        self.ffn = self._widths(layers)

    @property
    def _one_block(self) -> bool:
        """Whether a layer is one block alone."""
        return self.traits.mamba is not None and self.traits.mamba.one_block

    def weights(self) -> DecoderWeights:
        """Returns what reads the weights."""
        names = Names(
            "token_embd.weight",
            f"{self.traits.last_norm[1]}.weight",
            "output.weight",
            "blk.{}",
            self.traits.names,
            self.traits.gguf_fused,
            self._expert_names(),
            GGUF_LATENTS,
            "attn_sinks.weight" if self.traits.sinks else "",
            "shortconv.conv",
            None if self.traits.delta is None else self.traits.delta.gguf,
            GGUF_MAMBA,
            GGUF_SCAN,
            streams=GGUF_STREAMS,
            positions="position_embd.weight" if self.traits.positions else "",
            embedding_norm=f"{norm}.weight" if (norm := self.traits.embedding_norm[1]) else "",
            activation="xielu" if self.traits.trained_activation else "",
            ignored=_ROTARY,
            beside=self._beside(),
        )
        trained = self.traits.trained_activation
        return DecoderWeights(
            with_xielu(self.file, len(self.config.layers)) if trained else self.file,
            names,
            self.config,
            self.hidden,
            self.ffn,
            self.vocabulary,
            self.architecture,
            context=self.context,
            rotary_pairs=self.rope.dimensions if self.traits.pairs else 0,
            norms_of_all_heads=self.traits.norms_of_all_heads,
            gated_heads=self.traits.gated_heads,
        )

    def _beside(self) -> re.Pattern[str]:
        """Tensors beside the text model, and layers that predict tokens further ahead."""
        numbers = "|".join(map(str, self._further)) or "(?!)"
        return re.compile(rf"{_BESIDE.pattern}|blk\.({numbers})\.")

    def _activation(self, given: str | None) -> str:
        key = "hidden_activation"
        stated = None if self.of.given(key) is None else self.of.text(key, "")
        return chosen_activation(
            given, self.traits.activation, stated, GGUF_NAMES, partial(self.of.reject, key)
        )

    def _experts(self, layers: tuple[Mixer, ...]) -> Experts | None:
        """The mixture of experts of some layers."""
        mixture, among = self.traits.mixture, self._expert_layers(layers)
        if mixture is None or among == []:
            return None
        return gguf_experts(self.of, mixture, self.hidden, len(layers), among)

    def _expert_layers(self, layers: tuple[Mixer, ...]) -> list[int] | None:
        """Which layers are mixtures of experts, where that is not the same in all files."""
        if isinstance(self.traits.mamba, ScanTraits):
            tensors, router = self.file.tensors, GGUF_EXPERTS.router
            return [n for n in range(len(layers)) if f"blk.{n}.{router}.weight" in tensors]
        if not self._one_block:
            return None
        return [number for number, layer in enumerate(layers) if isinstance(layer, NoMixer)]

    def _expert_names(self) -> ExpertNames | None:
        mixture = self.traits.mixture
        if mixture is None or self.config.experts is None:
            return None
        return gguf_expert_names(mixture, self.file.tensors)

    def _widths(self, layers: tuple[Mixer, ...]) -> list[int]:
        """Width of the feed-forward block of each layer."""
        key, count = "feed_forward_length", len(layers)
        if not self.traits.attends:
            return [0] * count
        if self._one_block:
            return [gguf_width(self.of)] * count
        listed = self.of.given(key)
        if self.traits.wide_heads and isinstance(listed, np.ndarray):
            if len(listed) != count or listed.min() < 1:
                self.of.reject(key, listed.tolist(), f"{count} positive numbers")
            return [int(width) for width in listed]
        experts_only = self.traits.mixture is not None and self.traits.delta is not None
        return [self.of.positive(key, 1 if experts_only else None)] * count

    def _gemma(self, layers: int) -> dict[str, Any]:
        """The residual streams, where there are several, and inputs of layers."""
        of, traits, key = self.of, self.traits, "embedding_length_per_layer_input"
        if not traits.normed_values:
            return {}
        return {
            "streams": gguf_streams(of, self.hidden, layers) if traits.streams else None,
            "normed_values": True,
            "input_width": of.positive(key, 256) if traits.streams else of.whole(key),
        }

    def _epsilon(self) -> float:
        """ε of the norms; llama.cpp's converter uses another key for Nemotron-H."""
        key = "attention.layer_norm_rms_epsilon"
        other = self.traits.centred or (self._one_block and self.of.given(key) is None)
        return self.of.number("attention.layer_norm_epsilon" if other else key)

    def _factors(self, heads: int, latent: Latent | None, layers: int) -> dict[str, Any]:
        """Those of `_multipliers`, with the one on scores that the shape says."""
        found = self._multipliers()
        if latent is not None:
            found["scale"] = (latent.nope + latent.rope) ** -0.5 * self.rope.stretch
        if layers == _SCALED_BY_HIDDEN.get(self.architecture):
            found["scale"] = (self.hidden / heads) ** -0.5
        return found

    def _multipliers(self) -> dict[str, Any]:
        """Factors on embedding, scores and residuals, and the divisor of logits."""
        of, traits = self.of, self.traits
        embedding = self.hidden**0.5 if traits.scales_embedding else 1.0
        usual = {"embedding_scale": 1.0, "residual_scale": 1.0, "logit_divisor": 1.0}
        if traits.depth_scaled:
            usual = depth_scales(self.hidden, of.positive("block_count"), MINICPM)
            if not traits.multiplied:
                return {"scale": 0.0, **usual}
        if traits.logit_scale:
            return {"scale": 0.0, "logit_divisor": 1 / of.number("logit_scale", traits.logit_scale)}
        if not traits.multiplied:
            return {"embedding_scale": embedding, "scale": traits.score_scale}
        return {
            "scale": 0.0 if traits.depth_scaled else of.number("attention.scale", 0.0),
            **{
                name: of.number(key, 0.0) or usual[name]
                for name, key in zip(usual, _MULTIPLIERS, strict=True)
            },
        }

    def _head_sizes(self, heads: int) -> tuple[int, int]:
        """Key/value heads, and the length of a head; 0 where no layer attends."""
        if not heads:
            return 0, 0
        if self.traits.wide_heads:
            in_window = self._in_window(self._count())
            local, self._wide = gguf_heads(self.of, heads, self.hidden, in_window)
            return local.count, local.size
        of, kv_heads = self.of, self._kv_heads(heads)
        if heads % kv_heads:
            of.reject("attention.head_count_kv", kv_heads, f"a divisor of {heads}")
        head_dim = of.positive("attention.key_length", max(1, self.hidden // heads))
        if (value_dim := of.positive("attention.value_length", head_dim)) != head_dim:
            of.reject("attention.value_length", value_dim, f"{head_dim}, as for keys")
        # Before anything of that size is made: a damaged head count must not cost memory.
        first = self._attending(self._count()).index(True)
        name, rows = "attn_q", heads * head_dim
        if together := tensor_with("self_attn.q_proj", self.traits.gguf_fused):
            name, rows = together, rows + 2 * kv_heads * head_dim
        rows *= 1 + self.traits.gated_heads
        of.tensor(f"blk.{first}.{name}.weight", (rows, self.hidden))
        return kv_heads, head_dim

    def _kv_heads(self, heads: int) -> int:
        """Key/value heads of the layers that attend."""
        key = "attention.head_count_kv"
        listed = self.of.given(key)
        lists = self.traits.convolves or self.traits.mamba is not None
        if not lists or not isinstance(listed, np.ndarray):
            return self.of.positive(key, heads)
        counts = set(listed.tolist()) - {0}
        if len(counts) != 1 or not all(type(count) is int and count > 0 for count in counts):
            self.of.reject(key, listed.tolist(), "0, and one number where layers attend")
        return int(counts.pop())

    def _attending(self, count: int) -> list[bool]:
        """Which layers attend; of `count` layers where no key says it."""
        if self.traits.mamba is not None:
            return gguf_mamba_attending(self.of, self.traits.mamba, count)
        if self.traits.delta is not None:
            return gguf_attending(self.of, count)
        listed = self.of.given("attention.head_count_kv")
        if not self.traits.convolves or not isinstance(listed, np.ndarray):
            return [True] * count
        return [bool(heads) for heads in listed]

    def taps(self) -> int:
        """Tokens that a convolution mixes."""
        taps = self.of.positive("shortconv.l_cache")
        if taps < 2:
            self.of.reject("shortconv.l_cache", taps, "at least 2")
        return taps

    def _count(self) -> int:
        """Number of layers, without those that predict tokens further ahead."""
        of = self.of
        further = of.whole("nextn_predict_layers") if of.given("nextn_predict_layers") else 0
        count = of.positive("block_count") - further
        self._further = range(count, count + further)
        if count < 1:
            of.reject("nextn_predict_layers", further, "fewer than all layers")
        return count

    def _other_mixer(self) -> Mixer:
        """What mixes tokens in layers that do not attend."""
        if self.traits.delta is not None:
            return gguf_delta_net(self.of, self.traits.delta.tiled)
        return ShortConvolution(self.taps())

    def _layers(self) -> tuple[Mixer, ...]:
        """How each layer mixes tokens."""
        of, traits = self.of, self.traits
        count = self._count()
        behind = "post_attention_layernorm"
        has_one = traits.mamba is not None or behind not in traits.names
        norm = traits.names["input_layernorm" if has_one else behind]
        if f"blk.{count - 1}.{norm}.weight" not in self.file.tensors:
            of.reject("block_count", count, "as many layers as the file has")
        window = self._window()
        rotary = self.rope.scaled() if self.rope.dimensions else None
        if (mamba := traits.mamba) is not None:
            # llama.cpp's converter says here whether heads rotate.
            rotates = mamba.turns and not mamba.one_block and (mamba.beside or self._turns())
            return gguf_layers(of, mamba, [LayerAttention(rotary if rotates else None)] * count)
        local = rotary
        if traits.local_unscaled or of.given("rope.freq_base_swa") is not None:
            local = self.rope.local(traits.local_rope_base, traits.local_unscaled)
        layers: list[Mixer] = []
        attending = self._attending(count)
        if len(attending) != count:
            key = "attention.head_count_kv"
            of.reject(key, f"{len(attending)} entries", f"{count}, as many as layers")
        for number, narrow in enumerate(self._in_window(count), 1):
            if not attending[number - 1]:
                layers.append(self._other_mixer())
                continue
            narrow = narrow and window > 0
            turns = not (traits.positions or traits.alibi) and number % (
                traits.no_rope_every or count + 1
            )
            turns = narrow if traits.turns_in_windows and window else turns
            seen = window if narrow and window < self.rope.context else 0
            of_layer = (local if narrow else rotary) if turns else None
            heads = None if narrow else self._wide
            layers.append(LayerAttention(of_layer, seen, heads=heads))
        if traits.normed_values:
            shared = gguf_shared(of, count if traits.streams else 0)
            return sharing(layers, shared, "attention.shared_kv_layers", of.reject)
        return tuple(layers)

    def _turns(self) -> bool:
        key = "rope.scaling.finetuned"
        return self.of.given(key) is None or self.of.flag(key)

    def _window(self) -> int:
        """Keys that a query sees in the layers with a window; 0 where no layer has one."""
        key = "attention.sliding_window"
        window = self.of.given(key)
        if window is None:
            return self.traits.window
        return 0 if type(window) is int and window == 0 else self.of.positive(key)

    def _in_window(self, count: int) -> list[bool]:
        """Which layers have a window."""
        key, every = "attention.sliding_window_pattern", self.traits.global_every
        listed = self.of.given(key)
        if isinstance(listed, np.ndarray):
            if len(listed) != count:
                self.of.reject(key, f"{len(listed)} entries", f"{count}, as many as layers")
            return [bool(value) for value in listed]
        if listed is not None:
            every = self.of.positive(key)
        first = 0 if self.traits.global_first else 1
        return [not every or number % every != 0 for number in range(first, count + first)]
