"""What a ``config.json`` of Hugging Face means for an encoder: shape, head, and weights."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tamiz.api import read_json
from tamiz_exporters.activations import HF_NAMES
from tamiz_exporters.companions import CONFIG
from tamiz_exporters.distances import deberta_buckets, t5_buckets
from tamiz_exporters.encoder_architectures import ENCODERS, EncoderArchitecture
from tamiz_exporters.encoder_config import (
    Disentangled,
    EncoderConfig,
    EncoderLayer,
    Head,
    Positions,
    rotary_of,
)
from tamiz_exporters.encoder_fields import ENCODER_FIELDS
from tamiz_exporters.encoder_weights import EncoderWeights
from tamiz_exporters.hf_fields import Fields
from tamiz_exporters.safetensors_file import SafetensorsFolder
from tamiz_exporters.sentence_files import is_embedder

#: Endings of the classes whose hidden states are an encoder's output.
_HIDDEN_STATES = ("Model", "ForMaskedLM", "ForPreTraining", "LMHeadModel")
_CLASSIFIES = "ForSequenceClassification"
#: Tensors that newer versions of transformers do not store.
_COUNTS = re.compile(r".*\.position_ids")
_MOST_LAYERS = 10_000
#: Kinds of layers, as transformers names them.
_FULL, _SLIDING = "full_attention", "sliding_attention"


def is_encoder(config: dict[str, Any]) -> bool:
    """Whether a ``config.json`` is one of an encoder that is known, with a class that is."""
    kind = config.get("model_type")
    traits = ENCODERS.get(kind) if isinstance(kind, str) else None
    if traits is None or config.get("is_decoder"):
        return False
    names = config.get("architectures") or [f"{traits.stem}Model"]
    known = {f"{traits.stem}{ending}" for ending in (*_HIDDEN_STATES, _CLASSIFIES)}
    known.update(traits.wholes)
    return isinstance(names, list) and len(names) == 1 and names[0] in known


class HfEncoder:
    """An encoder in a folder of Hugging Face's layout.

    Attributes:
        folder: The weights.
        config: The encoder's shape.
    """

    def __init__(self, path: Path) -> None:
        """Reads ``config.json`` and the headers of the weights.

        Args:
            path: The folder; a model of sentence-transformers is read for its hidden states,
                whatever its head.

        Raises:
            TamizError: A value is missing, absurd or not supported, or a file is damaged.
        """
        written = Fields(path / CONFIG, read_json(path / CONFIG))
        kind = written.text("model_type", "")
        self._of = of = written.obeyed(kind, ENCODER_FIELDS)
        self.folder = SafetensorsFolder(path, _COUNTS)
        names = of.given("architectures") or [""]
        if names[0] in ENCODERS[kind].wholes and not is_embedder(path):
            expected = f"{ENCODERS[kind].stem}Model, or files of sentence-transformers beside it"
            of.reject("architectures", names[0], f"{expected}: the encoder alone is exported")
        self._traits = traits = self._read_traits(ENCODERS[kind])
        classifies = names[0].endswith(_CLASSIFIES) and not is_embedder(path)
        word = f"{traits.modules['embeddings.word']}.weight"
        prefixes = (traits.prefix, traits.other_prefix)
        self._prefix = next((p for p in prefixes if f"{p}{word}" in self.folder.tensors), "")
        hidden, heads = self._positive("hidden_size"), self._positive("num_attention_heads")
        head_dim, disentangled = self._head_dim(hidden, heads), self._disentangled()
        sums = 1 + len(disentangled.parts) if disentangled is not None else 1
        self.config = EncoderConfig(
            hidden=hidden,
            heads=heads,
            head_dim=head_dim,
            scale=(head_dim * sums) ** -0.5 if traits.scaled else 1.0,
            epsilon=of.number(self._name("layer_norm_eps"), self._default("layer_norm_eps")),
            centred=traits.centred,
            activation=self._activation(),
            gated=traits.gated,
            layers=self._layers(head_dim),
            norm_first=traits.norm_first,
            positions=self._positions(),
            padding=self._padding(),
            types=self._types(),
            bias=bool(traits.bias),
            disentangled=disentangled,
            head=self._head() if classifies else None,
        )

    def weights(self) -> EncoderWeights:
        """Returns what reads the weights."""
        of = self._of
        positions = None
        if self.config.positions is not Positions.NONE:
            positions = of.positive("max_position_embeddings")
        return EncoderWeights(
            source=self.folder,
            prefix=self._prefix,
            traits=self._traits,
            config=self.config,
            width=of.positive("embedding_size", self.config.hidden),
            ffn=self._positive("intermediate_size"),
            vocabulary=of.positive("vocab_size"),
            positions=positions,
            bias_buckets=self._bias_buckets(positions) if self.config.bias else None,
        )

    def _read_traits(self, traits: EncoderArchitecture) -> EncoderArchitecture:
        """The traits as this file has them: names of modules, and T5's forms of feed-forward."""
        tensors = self.folder.tensors
        modules = dict(traits.modules)
        for name, other in traits.other_modules.items():
            if f"{modules[name]}.weight" not in tensors and f"{other}.weight" in tensors:
                modules[name] = other
        form = self._feed_forward_form()
        if traits.ungated_parts is None or form[0] == "gated":
            return replace(traits, modules=modules)
        return replace(traits, modules=modules, parts=traits.ungated_parts, gated=False)

    def _feed_forward_form(self) -> list[str]:
        """T5's field, ``relu`` or ``gated-gelu``, at its hyphens."""
        return self._of.text("feed_forward_proj", "relu").split("-")

    def _head_dim(self, hidden: int, heads: int) -> int:
        of, name = self._of, self._name("head_dim")
        if name != "head_dim":  # of its own
            return of.positive(name)
        if hidden % heads:
            of.reject("num_attention_heads", heads, f"a divisor of {hidden}")
        if of.given(name) not in (None, hidden // heads):
            of.reject(name, of.given(name), f"{hidden // heads}")
        return hidden // heads

    def _bias_buckets(self, positions: int | None) -> np.ndarray:
        """The bucket of each distance, up to the longest text, or to where the last one begins."""
        of = self._of
        count = of.positive("relative_attention_num_buckets", 32)
        farthest = of.positive("relative_attention_max_distance", 128)
        if count % 4 or farthest <= count // 4:
            found = f"{count} up to a distance of {farthest}"
            expected = "a multiple of 4, and a distance beyond a quarter of it"
            of.reject("relative_attention_num_buckets", found, expected)
        return t5_buckets(positions or farthest + 1, count, farthest)

    def _name(self, key: str) -> str:
        return self._traits.fields.get(key, key)

    def _default(self, key: str) -> Any:
        return self._traits.defaults.get(key)

    def _positive(self, key: str) -> int:
        return self._of.positive(self._name(key))

    def _activation(self) -> str:
        key = self._name("hidden_act")
        name = self._of.text(key, self._default("hidden_act") or "gelu")
        if self._traits.ungated_parts is not None:
            key, form = "feed_forward_proj", self._feed_forward_form()
            name = "gelu_new" if form == ["gated", "gelu"] else form[-1]  # as transformers
            if len(form) > 2 or (len(form) == 2 and form[0] != "gated"):
                name = "-".join(form)
        if name not in HF_NAMES:
            self._of.reject(key, name, f"one of {', '.join(HF_NAMES)}")
        return HF_NAMES[name]

    def _padding(self) -> int:
        if self._traits.padding is not None:
            return self._traits.padding
        number = self._of.given("pad_token_id")
        number = 1 if number is None else number
        if type(number) is not int or number < 0:
            self._of.reject("pad_token_id", number, "a token id")
        return number

    def _positions(self) -> Positions:
        biased = self._of.flag("position_biased_input")
        return Positions.NONE if biased is False else self._traits.positions

    def _types(self) -> int:
        if not self._traits.types or self._of.given("type_vocab_size") == 0:
            return 0
        default = int(self._default("type_vocab_size"))
        if not default and self._of.given("type_vocab_size") is None:
            return 0
        return self._of.positive("type_vocab_size", default)

    def _layers(self, head_dim: int) -> tuple[EncoderLayer, ...]:
        of, count = self._of, self._positive("num_hidden_layers")
        if count > _MOST_LAYERS:
            of.reject("num_hidden_layers", count, f"at most {_MOST_LAYERS}")
        if self._traits.model_type == "albert":
            return self._shared_layers(count)
        if not self._traits.rope:
            return tuple(EncoderLayer(f"layers.{number}") for number in range(count))
        kinds = self._kinds(count)
        reach = {_FULL: 0}
        if _SLIDING in self._traits.rope:
            reach[_SLIDING] = of.positive("local_attention", 128) // 2
        rotary = {kind: rotary_of(self._theta(kind), head_dim) for kind in self._traits.rope}
        return tuple(
            EncoderLayer(f"layers.{n}", rotary[kind], reach[kind]) for n, kind in enumerate(kinds)
        )

    def _kinds(self, count: int) -> list[str]:
        """Whether each layer sees all tokens or those near."""
        if _SLIDING not in self._traits.rope:
            return [_FULL] * count
        kinds = self._of.given("layer_types")
        if kinds is None:
            every = self._of.positive("global_attn_every_n_layers", 3)
            return [_SLIDING if n % every else _FULL for n in range(count)]
        known = {*self._traits.rope}
        if not isinstance(kinds, list) or len(kinds) != count or {*map(str, kinds)} - known:
            self._of.reject("layer_types", kinds, f"{count} times {' or '.join(sorted(known))}")
        return [str(kind) for kind in kinds]

    def _theta(self, kind: str) -> float:
        """The base of the rotary embedding of a kind of layers."""
        key, default = self._traits.rope[kind]
        group = self._of.group("rope_parameters")
        if group is not None:
            group = group.group(kind) or group
            for name, value in group.values.items():
                if name in self._traits.rope or (name, value) == ("rope_type", "default"):
                    continue
                if name != "rope_theta":
                    group.reject(name, value, "the rope_type default and a rope_theta")
        if group is not None and group.given("rope_theta") is not None:
            return group.number("rope_theta")
        return self._of.number(key, default)

    def _shared_layers(self, count: int) -> tuple[EncoderLayer, ...]:
        """ALBERT's: some groups of layers, each run several times."""
        groups = self._of.positive("num_hidden_groups", 1)
        inner = self._of.positive("inner_group_num", 1)
        if groups > count:
            self._of.reject("num_hidden_groups", groups, f"at most {count}")
        return tuple(
            EncoderLayer(f"layers.{int(number / (count / groups))}.{part}")
            for number in range(count)
            for part in range(inner)
        )

    def _disentangled(self) -> Disentangled | None:
        of = self._of
        if self._traits.model_type != "deberta-v2" or not of.flag("relative_attention"):
            return None
        given = of.given("pos_att_type") or []
        parts = given.split("|") if isinstance(given, str) else given
        if not isinstance(parts, list) or {*map(str, parts)} - {"c2p", "p2c"}:
            of.reject("pos_att_type", given, "some of c2p and p2c")
        longest = of.positive("max_position_embeddings")
        most = of.given("max_relative_positions")
        most = most if type(most) is int and most > 0 else longest
        count = of.given("position_buckets")
        count = count if type(count) is int and count > 0 else 0
        chosen = tuple(part for part in ("c2p", "p2c") if part in parts)
        return Disentangled(deberta_buckets(longest, count, most), chosen, count or most)

    def _head(self) -> Head:
        of, head = self._of, self._traits.head
        if head is None:
            of.reject("architectures", "a class with a head", f"{self._traits.stem}Model")
        acts = []
        for name in head.activations:
            given = of.text(name[1:], "gelu") if name.startswith("=") else name
            if given and given not in HF_NAMES:
                of.reject(name[1:], given, f"one of {', '.join(HF_NAMES)}")
            acts.append(HF_NAMES[given] if given else "")
        pooling = of.text("classifier_pooling", "cls")
        if pooling not in ("cls", "mean"):
            of.reject("classifier_pooling", pooling, "cls or mean")
        last = self.folder.tensors.get(f"{head.modules[-1]}.weight")
        if last is None:
            self.folder.fail(f"tensor {head.modules[-1]}.weight", "no such tensor", "a head")
        return Head(tuple(acts), pooling, bool(head.norm), last.shape[0])
