"""What becomes of each key of a GGUF file of an encoder, without the architecture."""

from __future__ import annotations

from tamiz_exporters.gguf_fields import ARCHITECTURE_KEYS, TOKENIZER_KEYS
from tamiz_exporters.source_fields import Field, Treatment, no_effect, obeyed, obeyed_by, refused

#: Keys that begin with the architecture; of the others those that decoders refuse are refused.
ENCODER_KEYS: dict[str, Field] = {
    **{
        key: field
        for key, field in ARCHITECTURE_KEYS.items()
        if field.treatment is not Treatment.OBEYED
    },
    "context_length": obeyed("limit of a text"),
    "embedding_length": obeyed(),
    "block_count": obeyed(),
    "feed_forward_length": obeyed(),
    "attention.head_count": obeyed(),
    "attention.layer_norm_epsilon": obeyed(),
    "attention.causal": Field(Treatment.REFUSED, "attention to earlier tokens only", (False,)),
    "attention.head_count_kv": refused("heads that share keys and values"),
    "pooling_type": obeyed("mean, first or last token; 4, rank, is a reranker"),
    "classifier.output_labels": obeyed("names of the logits of a reranker"),
    "rope.freq_base": obeyed_by(["nomic-bert"]),
    "rope.scaling.type": refused("stretched rotary embeddings", "none"),
    "expert_count": refused("a mixture of experts"),
    "expert_used_count": refused("a mixture of experts"),
    "moe_every_n_layers": refused("a mixture of experts"),
}
#: Keys that begin with ``tokenizer.``
ENCODER_TOKENIZER_KEYS: dict[str, Field] = {
    **TOKENIZER_KEYS,
    "ggml.model": obeyed("bert (WordPiece), t5 (Unigram)"),
    "ggml.pre": Field(Treatment.NO_EFFECT, "words and signs of punctuation are always split"),
    "ggml.normalizer.lowercase": obeyed("of WordPiece; without it, capitals in the vocabulary say"),
    "ggml.normalizer.strip_accents": obeyed("of WordPiece; without it as lowercase"),
    "ggml.token_type_count": obeyed("kinds of tokens"),
    "ggml.seperator_token_id": obeyed(),
    "ggml.cls_token_id": obeyed(),
    "ggml.mask_token_id": obeyed(),
    "ggml.precompiled_charsmap": obeyed("of Unigram: which characters become others"),
    "ggml.remove_extra_whitespaces": obeyed("of Unigram"),
    **no_effect("tokens of a text always lie between a first and a last one", "ggml.add_sep_token"),
}
