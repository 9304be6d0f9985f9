"""What a ``config.json`` of Hugging Face means: decoder shape, and names of the weights."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir

from tamiz.api import read_json
from tamiz_exporters.activations import HF_NAMES, chosen_activation
from tamiz_exporters.alibi_fields import hf_slopes
from tamiz_exporters.architectures import SOFT_CAPS
from tamiz_exporters.chunk_fields import hf_reach
from tamiz_exporters.companions import CONFIG, SENTENCE_MODULES
from tamiz_exporters.decoder_config import (
    DecoderConfig,
    Experts,
    Heads,
    Latent,
    LayerAttention,
)
from tamiz_exporters.decoder_weights import DecoderWeights, Names, tensor_with
from tamiz_exporters.expert_fields import hf_experts
from tamiz_exporters.expert_source import ExpertSource
from tamiz_exporters.expert_weights import DOWN, ExpertNames
from tamiz_exporters.gemma_fields import hf_input_width, hf_wide_heads
from tamiz_exporters.hf_checks import check_biases
from tamiz_exporters.hf_fields import Fields
from tamiz_exporters.hf_layers import attending, bidirectional, mixers, widths, windows
from tamiz_exporters.hf_rope import HfRope
from tamiz_exporters.hf_traits import read_traits, text_fields
from tamiz_exporters.input_weights import GGUF_INPUTS
from tamiz_exporters.latent_fields import MINICPM, depth_scales, hf_latent
from tamiz_exporters.latent_weights import HF_LATENTS
from tamiz_exporters.mamba_fields import falcon_scales, hf_expert_layers, hf_kinds
from tamiz_exporters.mamba_traits import MambaTraits, ScanTraits
from tamiz_exporters.rotary_norms import norms_of_heads
from tamiz_exporters.safetensors_file import SafetensorsFolder
from tamiz_exporters.score_weight import score_weight
from tamiz_exporters.stored_tensor import Source, find_tensor
from tamiz_exporters.stream_fields import hf_stream_shape
from tamiz_exporters.stream_weights import hf_streams
from tamiz_exporters.ternary_source import with_levels
from tamiz_exporters.turned_source import with_turned

#: What begins the names of a decoder's weights: of a model with its head, without it, of one that
#: also reads pictures, and as Nemotron-H was published.
_PREFIXES = (
    *("model.", "", "model.language_model.", "language_model.model.", "model.text_model."),
    *("backbone.", "gpt_neox.", "transformer.", "model.decoder."),
)
#: Tensors beside the text model: pictures, and layers that predict tokens further ahead.
_BESIDE = (
    r"mtp\.|(model\.)?(mtp_\w+\.|(visual|vision_tower|vision_model|multi_modal_projector|connector"
    r"|audio_tower|embed_vision|embed_audio)\.|image_newline$)"
)
#: Frequencies and masks that old versions of transformers stored.
_ROTARY = r".*\.(rotary_emb\.inv_freq|attn\.(masked_)?bias)"
_HEAD, _SCORE = "lm_head.weight", "score.weight"
#: What begins the names of the text model with its head, where a model also reads pictures.
_TEXT_PART = "language_model."
_MOST_LAYERS = 10_000
_PARALLEL = "use_parallel_residual"


class HfModel:
    """A decoder in a folder of Hugging Face's layout.

    Attributes:
        folder: The weights.
        config: The decoder's shape.
        context: Longest sequence the model was made for, in tokens.
    """

    def __init__(self, path: Path, activation: str | None = None) -> None:
        """Reads ``config.json`` and the headers of the weights.

        Args:
            path: The folder.
            activation: Of the feed-forward block, where ``config.json`` names none; None for the
                architecture's.

        Raises:
            TamizError: A value is missing, absurd or not supported, or a file is damaged.
        """
        written = Fields(path / CONFIG, read_json(path / CONFIG))
        self.folder: Source = SafetensorsFolder(path)
        self._traits = read_traits(written)
        embedding = f"{self._traits.embedding}.weight"
        named = (p for p in _PREFIXES if f"{p}{embedding}" in self.folder.tensors)
        self._prefix = next(named, _PREFIXES[0])
        self._of = of = text_fields(written, self._traits)
        self.folder = self._as_others()
        score_cap, logit_cap = map(of.nullable, SOFT_CAPS, self._traits.soft_caps or (0.0, 0.0))
        self._hidden = of.positive("hidden_size")
        heads = of.positive("num_attention_heads") if self._traits.attends else 0
        latent = self._latent(heads)
        if latent is None:
            kv_heads, head_dim = self._head_sizes(heads)
        else:
            kv_heads, head_dim = 1, latent.cached
        layer = f"{self._prefix}{self._traits.layers}.0."
        check_biases(of, self._traits, self.folder.tensors, layer)
        wide = self._wide_heads(heads, Heads(kv_heads, head_dim))
        rotary = latent.rope if latent else wide.size if wide else head_dim
        self._rope = HfRope(of, self._traits, rotary, head_dim if wide else 0)
        layers = mixers(of, self._traits, self._rope, self._hidden, self._count(), wide)
        self.context = hf_reach(of, self._traits, layers, self._rope.context)
        unit = of.flag("use_qk_norm") is not False
        multipliers = self._multipliers(head_dim)
        if latent is not None:
            multipliers["scale"] = (latent.nope + latent.rope) ** -0.5 * self._rope.stretch
        self.config = DecoderConfig(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            epsilon=of.number(self._traits.epsilon_key),
            layers=layers,
            one_block=self._traits.mamba is not None and self._traits.mamba.one_block,
            score_cap=score_cap,
            logit_cap=logit_cap,
            activation=self._activation(activation),
            bidirectional=bidirectional(of),
            experts=self._experts(len(layers)),
            latent=latent,
            centred=self._traits.centred,
            parallel=self._traits.parallel and of.flag(_PARALLEL) is not False,
            growth=self._rope.growth,
            slopes=hf_slopes(of, self._traits, heads),
            **self._gemma(len(layers)),
            **norms_of_heads(self._traits, layers, unit, "rope_scaling", of.reject),
            **multipliers,
        )

    @property
    def hidden(self) -> int:
        """H, width of the residual stream."""
        return self._hidden

    def check_writes(self) -> None:
        """Refuses a model whose tokens see later ones, as it writes no text.

        Raises:
            TamizError: It is one.
        """
        if self.config.bidirectional:
            key = "use_bidirectional_attention"
            self._of.reject(key, True, f"false, or {SENTENCE_MODULES} of an embedder beside it")

    def check_embeds(self) -> None:
        """Refuses an embedder whose layers do not all attend.

        Raises:
            TamizError: It is one.
        """
        if not all(isinstance(layer, LayerAttention) for layer in self.config.layers):
            kind = "conv" if self._traits.convolves else "linear_attention"
            self._of.reject("layer_types", kind, f"full_attention where {SENTENCE_MODULES} is")

    def weights(self, head: bool = True) -> DecoderWeights:
        """Returns what reads the weights.

        Args:
            head: Whether the head is read, where it has a weight of its own; other heads may lie
                beside it where it is not.
        """
        prefix, own = self._prefix, self._traits.own_names
        parts = {name: own.get(name, name) for name in self._traits.names}
        mamba = self._traits.mamba
        names = Names(
            f"{prefix}{self._traits.embedding}.weight",
            f"{prefix}{self._traits.last_norm[0]}.weight",
            self._head(),
            f"{prefix}{self._traits.layers}.{{}}",
            parts,
            self._traits.hf_fused,
            self._expert_names(),
            HF_LATENTS,
            "self_attn.sinks" if self._traits.sinks else "",
            "conv.conv",
            None if self._traits.delta is None else self._traits.delta.transformers,
            mamba.names if isinstance(mamba, MambaTraits) else None,
            mamba.names if isinstance(mamba, ScanTraits) else None,
            self._traits.by_head,
            hf_streams(prefix) if self._traits.streams else None,
            GGUF_INPUTS.in_transformers(prefix),
            f"{prefix}{self._traits.positions}.weight" if self._traits.positions else "",
            f"{prefix}{norm}.weight" if (norm := self._traits.embedding_norm[0]) else "",
            "mlp.act_fn" if self._traits.trained_activation else "",
            ignored=re.compile(_ROTARY if head else f"{_ROTARY}|{re.escape(_SCORE)}"),
            beside=self._further_layers(),
        )
        return DecoderWeights(
            self.folder,
            names,
            self.config,
            self._hidden,
            widths(self._of, self._traits, self.config, self._hidden),
            self._of.positive("vocab_size"),
            self._traits.model_type,
            norms_from_one=self._traits.norms_from_one,
            norms_of_all_heads=self._traits.norms_of_all_heads,
            gated_heads=self._traits.gated_heads,
            first_position=self._traits.first_position,
            context=self.context,
            rotary_pairs=self._rope.dimensions if self._traits.pairs_everywhere else 0,
            tied=self._tied() if head else True,
        )

    def score(self, tokens: tuple[int, ...] | None) -> ir.LazyTensor:
        """What makes scores of the last token's hidden state, ``[H, labels]``.

        Args:
            tokens: The score is the logit of the first one, less that of the second where there
                is one; None for a head of its own.

        Raises:
            TamizError: There is none, or the score of logits is no product.
        """
        if tokens is None:
            weight = find_tensor(self.folder, _SCORE, (None, self._hidden))
            return score_weight(weight, None)
        if self.config.logit_cap:
            self._of.reject(SOFT_CAPS[1], self.config.logit_cap, "none where logits are the score")
        vocabulary = self._of.positive("vocab_size")
        tied = self._tied()
        own = tied is False or (tied is None and _HEAD in self.folder.tensors)
        name = _HEAD if own else f"{self._prefix}{self._traits.embedding}.weight"
        if max(tokens) >= vocabulary:
            self._of.reject(
                "vocab_size", vocabulary, f"more than the token {max(tokens)} of scores"
            )
        weight = find_tensor(self.folder, name, (vocabulary, self._hidden))
        return score_weight(weight, tokens, 1 / self.config.logit_divisor)

    def _as_others(self) -> Source:
        """The folder with the names and the layout that other architectures have."""
        mixture = self._traits.mixture
        folder = with_levels(self.folder, self._of, mixture)
        if self._traits.turned:
            folder = with_turned(folder, self._traits.turned)
        if mixture is not None and mixture.turned:
            folder = ExpertSource(folder, mixture.names.parts.values())
        return folder

    def _gemma(self, layers: int) -> dict[str, Any]:
        """The residual streams, where there are several, and inputs of layers."""
        of, traits = self._of, self._traits
        return {
            "streams": hf_stream_shape(of, self._hidden, layers) if traits.streams else None,
            "normed_values": traits.normed_values,
            "input_width": hf_input_width(of) if traits.normed_values else 0,
        }

    def _experts(self, layers: int) -> Experts | None:
        """The mixture of experts of some layers."""
        mixture, mamba, among = self._traits.mixture, self._traits.mamba, None
        if mamba is not None:
            among = hf_expert_layers(self._of, mamba)
        if mixture is None or among == []:
            return None
        return hf_experts(self._of, mixture, layers, among)

    def _expert_names(self) -> ExpertNames | None:
        """How the files name the weights of experts."""
        mixture, experts = self._traits.mixture, self.config.experts
        if mixture is None or experts is None:
            return None
        if mixture.stacked is not None:
            layer, part = min(experts.layers), mixture.stacked.parts[DOWN]
            if f"{self._prefix}{self._traits.layers}.{layer}.{part}" in self.folder.tensors:
                return mixture.stacked
        return mixture.names

    def _further_layers(self) -> re.Pattern[str]:
        """Names of the layers that predict tokens further ahead, which come last."""
        count, further = len(self.config.layers), self._of.given("num_nextn_predict_layers")
        further = 0 if further is None else self._of.whole("num_nextn_predict_layers")
        numbers = "|".join(str(count + number) for number in range(min(further, _MOST_LAYERS)))
        layers = rf"{re.escape(self._prefix)}{self._traits.layers}\.({numbers or '(?!)'})\."
        return re.compile(f"{layers}|{_BESIDE}")

    def _tied(self) -> bool | None:
        flags = (self._of.flag(key) for key in ("tie_word_embeddings", "tie_embedding"))
        return next((flag for flag in flags if flag is not None), None)

    def _head(self) -> str:
        """The head's weight, which may lie in a part that is the text model."""
        name = f"{self._traits.head}.weight"
        inner = f"{_TEXT_PART}{name}"
        return inner if inner in self.folder.tensors else name

    def _latent(self, heads: int) -> Latent | None:
        """What keys and values are made of, where it is a latent."""
        if not self._traits.latent:
            return None
        return hf_latent(self._of, self.folder, heads, self._hidden, self._prefix)

    def _head_sizes(self, heads: int) -> tuple[int, int]:
        """Key/value heads, and the length of a head; 0 where no layer attends."""
        if not heads:
            return 0, 0
        of = self._of
        one = self._traits.multi_query and of.flag("multi_query") is not False
        one = one and not of.flag("new_decoder_architecture")
        kv_heads = 1 if one else of.positive("num_key_value_heads", heads)
        if heads % kv_heads:
            of.reject("num_key_value_heads", kv_heads, f"a divisor of {heads}")
        head_dim = of.positive("attention_head_dim", max(1, self._hidden // heads))
        head_dim = of.positive("head_dim", head_dim)
        # Before anything of that size is made: a damaged count must not cost memory.
        layer = attending(of, self._traits, self._count()).index(True)
        if self._traits.wide_heads:
            layer = next((n for n, window in enumerate(self._windows()) if window), layer)
        rows = heads * head_dim
        own = self._traits.own_names.get("self_attn.q_proj", "self_attn.q_proj")
        if together := tensor_with("self_attn.q_proj", self._traits.hf_fused):
            own, rows = together, rows + 2 * kv_heads * head_dim
        rows *= 1 + self._traits.gated_heads
        self._check_rows(f"{layer}.{own}", rows)
        return kv_heads, head_dim

    def _wide_heads(self, heads: int, local: Heads) -> Heads | None:
        """The heads of layers that see all keys, where they are others."""
        if not self._traits.wide_heads:
            return None
        windows = self._windows()
        wide = hf_wide_heads(self._of, local, windows)
        if heads % wide.count:
            expected = f"a divisor of {heads}"
            self._of.reject("num_global_key_value_heads", wide.count, expected)
        self._check_rows(f"{windows.index(0)}.self_attn.q_proj", heads * wide.size)
        return wide

    def _windows(self) -> list[int]:
        return windows(self._of, self._traits, self._count())

    def _check_rows(self, weight: str, rows: int) -> None:
        """Refuses a model whose weight of a layer has another number of rows."""
        name = f"{self._prefix}{self._traits.layers}.{weight}.weight"
        find_tensor(self.folder, name, (rows, self._hidden))

    def _activation(self, given: str | None) -> str:
        key, own = "hidden_activation", self._traits.activation_key
        key = own if self._of.given(key) is None else key
        stated = None if self._of.given(key) is None else self._of.text(key, "")
        names = {**HF_NAMES, **self._traits.renamed}
        return chosen_activation(
            given, self._traits.activation, stated, names, partial(self._of.reject, key)
        )

    def _multipliers(self, head_dim: int) -> dict[str, Any]:
        """Factors on embedding, scores and residuals, and the divisor of logits."""
        of = self._of
        if self._traits.depth_scaled:
            usual = dict.fromkeys(MINICPM) if self._traits.multiplied else MINICPM
            given = {key: of.number(key, value) for key, value in usual.items()}
            return depth_scales(self._hidden, self._count(), given)
        if self._traits.mamba is not None and self._traits.mamba.beside:
            return falcon_scales(of, head_dim)
        if self._traits.logit_scale:
            return {"logit_divisor": 1 / of.number("logit_scale", self._traits.logit_scale)}
        if not self._traits.multiplied:
            scalar = of.given("query_pre_attn_scalar") is not None
            return {
                "scale": of.number("query_pre_attn_scalar") ** -0.5
                if scalar
                else self._traits.score_scale,
                "embedding_scale": self._embedding_scale(),
            }
        return {
            "scale": of.number("attention_multiplier", 1.0),
            "embedding_scale": of.number("embedding_multiplier", 1.0),
            "residual_scale": of.number("residual_multiplier", 1.0),
            "logit_divisor": of.number("logits_scaling", 1.0),
        }

    def _embedding_scale(self) -> float:
        """Factor on the embedding, where no field names one."""
        key = self._traits.scale_key
        scaled = self._traits.scales_embedding and (not key or self._of.flag(key) is True)
        return float(self._hidden**0.5) if scaled else 1.0

    def _count(self) -> int:
        """Number of layers."""
        if (mamba := self._traits.mamba) is not None and mamba.one_block and not mamba.alone:
            return len(hf_kinds(self._of, mamba))  # which transformers 5 counts, too
        count = self._of.positive("num_hidden_layers")
        if count > _MOST_LAYERS:
            self._of.reject("num_hidden_layers", count, f"at most {_MOST_LAYERS}")
        return count
