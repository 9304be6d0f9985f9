"""Small random encoders of the Hugging Face library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit.encoders import WORDS

#: Fields of a small encoder, as most configurations name them.
SHAPE = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 160,
    "pad_token_id": 1,
}
#: Name of the configuration's class, and what it takes besides.
KINDS: dict[str, dict[str, Any]] = {
    "Albert": {"embedding_size": 32, "num_hidden_layers": 3, "num_hidden_groups": 2},
    "Bert": {},
    "DebertaV2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 32,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
    },
    "DistilBert": {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128},
    "Electra": {"embedding_size": 32},
    "MPNet": {},
    "ModernBert": {
        "reference_compile": False,
        "attn_implementation": "eager",
        "num_hidden_layers": 4,
        "local_attention": 12,
        "classifier_pooling": "mean",
        **dict.fromkeys(("bos_token_id", "cls_token_id"), 0),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), 1),
    },
    "Roberta": {"type_vocab_size": 1},
    "NomicBert": {},
    "Gte": {},
    "XLMRoberta": {"type_vocab_size": 1},
    "Camembert": {"type_vocab_size": 1},
}
#: Encoders of models that also have a decoder; of no class with a head.
HEADLESS: dict[str, dict[str, Any]] = {
    "T5Encoder": {
        **{"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "d_kv": 24},
        "feed_forward_proj": "gated-gelu",
    },
}


def network_of(kind: str, folder: Path, head: str = "Model", **changes: Any) -> Any:
    """A small random model of a kind, saved; needs torch and transformers."""
    import torch
    import transformers

    torch.manual_seed(0)
    settings = {"vocab_size": WORDS, **HEADLESS[kind]} if kind in HEADLESS else SHAPE | KINDS[kind]
    name = f"{kind.removesuffix('Encoder')}Config"
    if not hasattr(transformers, name):
        pytest.skip(f"transformers {transformers.__version__} has no {name}: tox -e peers")
    config = getattr(transformers, name)(**(settings | changes))
    network = getattr(transformers, f"{kind}{head}")(config).eval()
    for parameter in network.parameters():  # away from 1 and 0, so that each of them matters
        parameter.data += 0.05 * torch.randn_like(parameter)
    network.save_pretrained(folder)
    return network
