"""What a GGUF file's metadata means for an encoder: shape, and names of the weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tamiz_exporters.activations import SILU
from tamiz_exporters.encoder_architectures import EncoderArchitecture, HeadOf
from tamiz_exporters.encoder_config import EncoderConfig, EncoderLayer, Head, Positions, rotary_of
from tamiz_exporters.encoder_weights import EncoderWeights
from tamiz_exporters.gguf_encoder_fields import ENCODER_KEYS, ENCODER_TOKENIZER_KEYS
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_hyperparameters import Hyperparameters

#: Values of ``pooling_type``.
NONE, MEAN, FIRST, LAST, RANK = range(5)
_BERT = EncoderArchitecture(
    model_type="bert",
    stem="Bert",
    prefix="",
    modules={
        "embeddings.word": "token_embd",
        "embeddings.position": "position_embd",
        "embeddings.type": "token_types",
        "embeddings.norm": "token_embd_norm",
    },
    layer="blk.{}",
    parts={
        **{f"attn_{c}": f"attn_{c}" for c in "qkv"},
        "attn_o": "attn_output",
        "attn_norm": "attn_output_norm",
        "ffn_up": "ffn_up",
        "ffn_down": "ffn_down",
        "ffn_norm": "layer_output_norm",
    },
    head=HeadOf(("cls", "cls.output"), ("tanh", "")),
    defaults={"hidden_act": "gelu"},
)
_QKV = {"attn_qkv": ("attn_q", "attn_k", "attn_v")}
#: By `general.architecture`.
GGUF_ENCODERS = {
    "bert": _BERT,
    "nomic-bert": replace(
        _BERT,
        model_type="nomic_bert",
        stem="NomicBert",
        parts={**_BERT.parts, "ffn_gate": "ffn_gate"},
        defaults={"hidden_act": SILU},
        positions=Positions.NONE,
        gated=True,
        rope={"full_attention": ("rope.freq_base", 1000.0)},
    ),
}


class GgufEncoder:
    """An encoder in a GGUF file.

    Attributes:
        file: The checked file.
        traits: Its architecture, with the names that this file has.
        config: The encoder's shape.
        context: Longest text, in tokens.
        vocabulary: Rows of the embedding.
        ffn: Width of the feed-forward block.
        pooling: Value of ``pooling_type``.
        label_names: Names of a reranker's logits, where the file has some.
    """

    def __init__(self, file: GgufFile) -> None:
        """Reads the hyperparameters.

        Args:
            file: The checked file, of an architecture of `GGUF_ENCODERS`.

        Raises:
            TamizError: A hyperparameter is missing, absurd or not supported.
        """
        self.file = file
        architecture = file.get("general.architecture", str)
        self._of = of = Hyperparameters(file, architecture, ENCODER_KEYS, ENCODER_TOKENIZER_KEYS)
        of.check()
        self.traits = self._traits(GGUF_ENCODERS[architecture])
        hidden, heads = of.positive("embedding_length"), of.positive("attention.head_count")
        if hidden % heads:
            of.reject("attention.head_count", heads, f"a divisor of {hidden}")
        self.context = of.positive("context_length")
        self.ffn = of.positive("feed_forward_length")
        self.vocabulary = of.tensor("token_embd.weight", (None, hidden)).shape[0]
        self.pooling = of.whole("pooling_type")
        if self.pooling > RANK:
            of.reject("pooling_type", self.pooling, f"{NONE} to {RANK}")
        self.label_names: list[Any] = file.get(f"{architecture}.classifier.output_labels", list, [])
        self.config = EncoderConfig(
            hidden=hidden,
            heads=heads,
            head_dim=hidden // heads,
            scale=(hidden // heads) ** -0.5,
            epsilon=of.number("attention.layer_norm_epsilon"),
            centred=True,
            activation=str(self.traits.defaults["hidden_act"]),
            gated=self.traits.gated,
            layers=self._layers(hidden // heads),
            norm_first=False,
            positions=self.traits.positions,
            padding=file.get("tokenizer.ggml.padding_token_id", int, 0),
            types=self._types(hidden),
            head=self._head(hidden) if self.pooling == RANK else None,
        )

    def weights(self) -> EncoderWeights:
        """Returns what reads the weights."""
        rows = None
        if self.config.positions is not Positions.NONE:
            table = self._of.tensor("position_embd.weight", (None, self.config.hidden))
            rows = table.shape[0]
        return EncoderWeights(
            source=self.file,
            prefix="",
            traits=self.traits,
            config=self.config,
            width=self.config.hidden,
            ffn=self.ffn,
            vocabulary=self.vocabulary,
            positions=rows,
            bias_buckets=None,
        )

    def _traits(self, traits: EncoderArchitecture) -> EncoderArchitecture:
        """The traits with the modules of this file: q, k and v may lie in one tensor."""
        tensors = self.file.tensors
        modules = {
            name: module
            for name, module in traits.modules.items()
            if name != "embeddings.type" or f"{module}.weight" in tensors
        }
        fused = _QKV if "blk.0.attn_qkv.weight" in tensors else {}
        return replace(traits, modules=modules, fused=fused)

    def _layers(self, head_dim: int) -> tuple[EncoderLayer, ...]:
        turns = None
        for key, default in self.traits.rope.values():
            turns = rotary_of(self._of.number(key, default), head_dim)
        count = self._of.positive("block_count")
        if count > len(self.file.tensors):
            self._of.reject("block_count", count, f"at most {len(self.file.tensors)}")
        return tuple(EncoderLayer(f"layers.{number}", turns) for number in range(count))

    def _types(self, hidden: int) -> int:
        """Kinds of tokens: rows of their table."""
        if "embeddings.type" not in self.traits.modules:
            return 0
        rows = self._of.tensor("token_types.weight", (None, hidden)).shape[0]
        given = self.file.get("tokenizer.ggml.token_type_count", int, rows)
        if given != rows:
            found = f"{rows} rows"
            self.file.fail("tensor token_types.weight", found, f"{given}: token_type_count")
        return int(rows)

    def _head(self, hidden: int) -> Head:
        """A reranker's two products; llama.cpp's converter leaves out the first one of BERT's."""
        for name in ("cls.weight", "cls.output.weight"):
            if name not in self.file.tensors:
                self.file.fail(f"tensor {name}", "no such tensor", "one, of a reranker's head")
        labels = self._of.tensor("cls.output.weight", (None, hidden)).shape[0]
        return Head(("tanh", ""), "cls", norm=False, labels=labels)
