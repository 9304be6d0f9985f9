"""The encoders that are read from safetensors, and what tells them apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tamiz_exporters.encoder_config import Positions


@dataclass(frozen=True)
class HeadOf:
    """The classification head of an architecture.

    Attributes:
        modules: Its linear layers in the source.
        activations: After each of them; ``=KEY`` for the field of the configuration.
        norm: The norm before the last one; empty for none.
    """

    modules: tuple[str, ...]
    activations: tuple[str, ...]
    norm: str = ""


@dataclass(frozen=True)
class EncoderArchitecture:
    """What the encoder of one architecture has.

    Attributes:
        model_type: Its name in ``config.json``.
        stem: What the names of its classes begin with in transformers.
        prefix: What begins the names of its weights in files of models with a head.
        modules: Modules outside of the layers: name in the graph → in the source.
        layer: What the names of layer 0, 1, … begin with.
        parts: Modules of a layer: name in the graph → in the source, without weight and bias.
        head: Its classification head; None where none is read.
        fused: A layer's modules that hold several → those, in their order.
        fields: Fields of the configuration that have another name here than in BERT's.
        defaults: Values of fields that the configuration may lack.
        positions: Where positions are looked up.
        padding: The id of padding, where it is not the configuration's.
        types: Whether there are kinds of tokens.
        norm_first: Whether norms lie before the blocks.
        gated: Whether the feed-forward block is gated.
        centred: Whether norms subtract the mean.
        scaled: Whether scores are divided by the root of the size of a head.
        bias: The module that is a bias by distance; empty for none.
        rope: Rotary embeddings by kind of layer: the configuration's key of the base θ, and its
            default; transformers 5 has them in ``rope_parameters``. Empty for none.
        other_prefix: What begins the names of weights instead of `prefix` in some files.
        other_modules: Names of `modules` in some files, where these have no such tensor.
        ungated_parts: `parts` where the configuration says that the block is not gated; None where
            it does not say it.
        wholes: Classes of which the encoder is a part. They are read beside files of
            sentence-transformers, which say that the encoder alone is meant.
    """

    model_type: str
    stem: str
    prefix: str
    modules: Mapping[str, str]
    layer: str
    parts: Mapping[str, str]
    head: HeadOf | None
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    positions: Positions = Positions.COLUMNS
    padding: int | None = None
    types: bool = True
    norm_first: bool = False
    gated: bool = False
    centred: bool = True
    scaled: bool = True
    bias: str = ""
    rope: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    other_prefix: str = ""
    other_modules: Mapping[str, str] = field(default_factory=dict)
    ungated_parts: Mapping[str, str] | None = None
    wholes: tuple[str, ...] = ()


_EMBEDDINGS = {
    "embeddings.word": "embeddings.word_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
}
_TYPES = {"embeddings.type": "embeddings.token_type_embeddings"}
_LAYER = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_o": "attention.output.dense",
    "attn_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "ffn_norm": "output.LayerNorm",
}
_DISTIL = {
    **{f"attn_{c}": f"attention.{c}_lin" for c in "qkv"},
    "attn_o": "attention.out_lin",
    "attn_norm": "sa_layer_norm",
    "ffn_up": "ffn.lin1",
    "ffn_down": "ffn.lin2",
    "ffn_norm": "output_layer_norm",
}
_ALBERT = {
    **{part: f"attention.{_LAYER[part].rpartition('.')[2]}" for part in ("attn_q", "attn_k")},
    "attn_v": "attention.value",
    "attn_o": "attention.dense",
    "attn_norm": "attention.LayerNorm",
    "ffn_up": "ffn",
    "ffn_down": "ffn_output",
    "ffn_norm": "full_layer_layer_norm",
}
_MODERN = {
    **{f"attn_{c}": f"attn.W{c}" for c in "qkv"},
    "attn_o": "attn.Wo",
    "attn_norm": "attn_norm",
    "ffn_gate": "mlp.W_gate",
    "ffn_up": "mlp.W_up",
    "ffn_down": "mlp.Wo",
    "ffn_norm": "mlp_norm",
}
_FULL, _SLIDING = "full_attention", "sliding_attention"
_NOMIC = {
    **{f"attn_{c}": f"attn.W{c}" for c in "qkv"},
    "attn_o": "attn.out_proj",
    "attn_norm": "norm1",
    "ffn_gate": "mlp.fc12",
    "ffn_up": "mlp.fc11",
    "ffn_down": "mlp.fc2",
    "ffn_norm": "norm2",
}
_GTE = {
    **{f"attn_{c}": f"attention.{c}" for c in "qkv"},
    "attn_o": "attention.o_proj",
    "attn_norm": "attn_ln",
    "ffn_gate": "mlp.gate",
    "ffn_up": "mlp.up",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "mlp_ln",
}
_T5 = {
    **{f"attn_{c}": f"layer.0.SelfAttention.{c}" for c in "qkvo"},
    "attn_norm": "layer.0.layer_norm",
    "ffn_up": "layer.1.DenseReluDense.wi",
    "ffn_down": "layer.1.DenseReluDense.wo",
    "ffn_norm": "layer.1.layer_norm",
}
_BERT = EncoderArchitecture(
    model_type="bert",
    stem="Bert",
    prefix="bert.",
    modules=_EMBEDDINGS | _TYPES,
    layer="encoder.layer.{}",
    parts=_LAYER,
    head=HeadOf(("bert.pooler.dense", "classifier"), ("tanh", "")),
    defaults={"type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12},
)
_ROBERTA = replace(
    _BERT,
    model_type="roberta",
    stem="Roberta",
    prefix="roberta.",
    head=HeadOf(("classifier.dense", "classifier.out_proj"), ("tanh", "")),
    positions=Positions.AFTER_PADDING,
)

#: By `model_type` of ``config.json``.
ENCODERS: dict[str, EncoderArchitecture] = {
    each.model_type: each
    for each in (
        _BERT,
        _ROBERTA,
        replace(_ROBERTA, model_type="xlm-roberta", stem="XLMRoberta"),
        replace(_ROBERTA, model_type="camembert", stem="Camembert"),
        EncoderArchitecture(
            model_type="distilbert",
            stem="DistilBert",
            prefix="distilbert.",
            modules=_EMBEDDINGS,
            layer="transformer.layer.{}",
            parts=_DISTIL,
            head=HeadOf(("pre_classifier", "classifier"), ("relu", "")),
            fields={
                "hidden_size": "dim",
                "num_attention_heads": "n_heads",
                "num_hidden_layers": "n_layers",
                "intermediate_size": "hidden_dim",
                "hidden_act": "activation",
            },
            defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-12},
            types=False,
        ),
        replace(
            _ROBERTA,
            model_type="mpnet",
            stem="MPNet",
            prefix="mpnet.",
            modules=_EMBEDDINGS,
            parts=_LAYER
            | {f"attn_{c}": f"attention.attn.{c}" for c in "qkvo"}
            | {"attn_norm": "attention.LayerNorm"},
            padding=1,
            types=False,
            bias="encoder.relative_attention_bias",
        ),
        replace(
            _BERT,
            model_type="albert",
            stem="Albert",
            prefix="albert.",
            modules=_EMBEDDINGS
            | _TYPES
            | {"embeddings.projection": "encoder.embedding_hidden_mapping_in"},
            layer="encoder.albert_layer_groups.{}",
            parts=_ALBERT,
            head=HeadOf(("albert.pooler", "classifier"), ("tanh", "")),
            defaults={**_BERT.defaults, "hidden_act": "gelu_new"},
        ),
        replace(
            _BERT,
            model_type="electra",
            stem="Electra",
            prefix="electra.",
            modules=_EMBEDDINGS | _TYPES | {"embeddings.projection": "embeddings_project"},
            head=HeadOf(("classifier.dense", "classifier.out_proj"), ("gelu", "")),
        ),
        replace(
            _BERT,
            model_type="deberta-v2",
            stem="DebertaV2",
            prefix="deberta.",
            modules=_EMBEDDINGS | _TYPES | {"embeddings.projection": "embeddings.embed_proj"},
            parts=_LAYER
            | {
                "attn_q": "attention.self.query_proj",
                "attn_k": "attention.self.key_proj",
                "attn_v": "attention.self.value_proj",
            },
            head=HeadOf(("pooler.dense", "classifier"), ("=pooler_hidden_act", "")),
            defaults={"type_vocab_size": 0, "hidden_act": "gelu", "layer_norm_eps": 1e-7},
        ),
        EncoderArchitecture(
            model_type="modernbert",
            stem="ModernBert",
            prefix="model.",
            modules={
                "embeddings.word": "embeddings.tok_embeddings",
                "embeddings.norm": "embeddings.norm",
                "norm": "final_norm",
            },
            layer="layers.{}",
            parts=_MODERN,
            fused={
                "attn.Wqkv": ("attn_q", "attn_k", "attn_v"),
                "mlp.Wi": ("ffn_gate", "ffn_up"),
            },
            head=HeadOf(("head.dense", "classifier"), ("=classifier_activation", ""), "head.norm"),
            fields={"hidden_act": "hidden_activation", "layer_norm_eps": "norm_eps"},
            defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-5},
            positions=Positions.NONE,
            types=False,
            norm_first=True,
            gated=True,
            rope={
                _FULL: ("global_rope_theta", 160000.0),
                _SLIDING: ("local_rope_theta", 10000.0),
            },
        ),
        replace(
            _BERT,
            model_type="nomic_bert",
            stem="NomicBert",
            prefix="nomic_bert.",
            modules=_EMBEDDINGS | _TYPES | {"embeddings.norm": "emb_ln"},
            layer="encoder.layers.{}",
            parts=_NOMIC,
            fused={"attn.Wqkv": ("attn_q", "attn_k", "attn_v")},
            head=HeadOf(("nomic_bert.pooler.dense", "classifier"), ("tanh", "")),
            defaults={**_BERT.defaults, "hidden_act": "silu"},
            positions=Positions.NONE,
            gated=True,
            rope={_FULL: ("rope_theta", 1000.0)},
        ),
        replace(
            _BERT,
            model_type="gte",
            stem="Gte",
            prefix="gte.",
            parts=_GTE,
            fused={
                "attention.qkv_proj": ("attn_q", "attn_k", "attn_v"),
                "mlp.up_gate_proj": ("ffn_up", "ffn_gate"),
            },
            head=HeadOf(("gte.pooler.dense", "classifier"), ("tanh", "")),
            defaults={**_BERT.defaults, "type_vocab_size": 1},
            positions=Positions.NONE,
            gated=True,
            rope={_FULL: ("rope_theta", 160000.0)},
            other_prefix="new.",
        ),
        EncoderArchitecture(
            model_type="t5",
            stem="T5Encoder",
            prefix="",
            modules={"embeddings.word": "shared", "norm": "encoder.final_layer_norm"},
            other_modules={"embeddings.word": "encoder.embed_tokens"},
            layer="encoder.block.{}",
            parts=_T5
            | {
                "ffn_gate": "layer.1.DenseReluDense.wi_0",
                "ffn_up": "layer.1.DenseReluDense.wi_1",
            },
            ungated_parts=_T5,
            head=None,
            fields={
                "hidden_size": "d_model",
                "head_dim": "d_kv",
                "num_attention_heads": "num_heads",
                "num_hidden_layers": "num_layers",
                "intermediate_size": "d_ff",
                "layer_norm_eps": "layer_norm_epsilon",
            },
            defaults={"layer_norm_eps": 1e-6},
            positions=Positions.NONE,
            types=False,
            norm_first=True,
            gated=True,
            centred=False,
            scaled=False,
            bias="encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
            wholes=("T5Model", "T5ForConditionalGeneration"),
        ),
    )
}
