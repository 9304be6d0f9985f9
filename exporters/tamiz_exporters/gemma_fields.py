"""What sources say of Gemma 3n and 4: inputs of layers, shared keys, and heads of two sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from tamiz_exporters.decoder_config import DecoderConfig, Heads, LayerAttention, Mixer
from tamiz_exporters.gguf_hyperparameters import Hyperparameters
from tamiz_exporters.hf_fields import Fields

Reject = Callable[[str, Any, str], NoReturn]

_WIDTH = "hidden_size_per_layer_input"
_OF_LAYERS, _OF_LAYER = "per_layer_config", {"head_dim", "num_key_value_heads"}
_KV_HEADS = "attention.head_count_kv"


def hf_input_width(of: Fields) -> int:
    """P of a ``config.json``, where null and 0 are none.

    Raises:
        TamizError: It is something else than a whole number.
    """
    none = _WIDTH in of.values and of.values[_WIDTH] is None
    return 0 if none else of.whole(_WIDTH, 256)


def sharing(layers: Sequence[Mixer], count: int, key: str, reject: Reject) -> tuple[Mixer, ...]:
    """The layers, the last `count` of which read keys and values of the last one of their kind.

    Args:
        layers: How each layer mixes tokens.
        count: Layers that have no keys and values of their own.
        key: What the source calls their number.
        reject: Raises the error about a key.

    Raises:
        TamizError: No layer before them is of the kind of one of them.
    """
    first = len(layers) - count
    if first < 1 and count:
        reject(key, count, f"fewer than {len(layers)}, the layers")
    found: list[Mixer] = list(layers[:first])
    for layer in layers[first:]:
        assert isinstance(layer, LayerAttention)
        owners = [number for number in range(first) if layers[number] == layer]
        if not owners:
            reject(key, count, "so many that a layer of each kind of attention is before them")
        found.append(replace(layer, shares=owners[-1]))
    return tuple(found)


def hf_wide_heads(of: Fields, local: Heads, windows: Sequence[int]) -> Heads:
    """The heads of layers that see all keys, in a ``config.json``.

    Published files say their size once. transformers 5.24 lists it by layer.

    Args:
        of: The fields.
        local: The heads of the other layers.
        windows: The window of each layer, 0 where it sees all keys.

    Raises:
        TamizError: A value is absurd, or such layers differ.
    """
    if windows[-1]:
        of.reject("layer_types", of.given("layer_types"), "full_attention as the last")
    together = of.flag("attention_k_eq_v") is True
    listed = of.group(_OF_LAYERS)
    if listed is None:
        count = of.positive("num_global_key_value_heads", local.count) if together else local.count
        return Heads(count, of.positive("global_head_dim", 512), together)
    full = {str(layer) for layer, window in enumerate(windows) if not window}
    each = list(listed.values.values())
    known = all(isinstance(one, dict) and one == each[0] for one in each)
    if set(listed.values) != full or not known or set(each[0]) - _OF_LAYER:
        expected = f"{' and '.join(sorted(_OF_LAYER))}, the same for each layer of full_attention"
        of.reject(_OF_LAYERS, listed.values, expected)
    own = Fields(of.path, each[0], f"{_OF_LAYERS}.")
    count = own.positive("num_key_value_heads", local.count)
    return Heads(count, own.positive("head_dim", local.size), together)


def gguf_heads(of: Hyperparameters, heads: int, hidden: int, local: Sequence[bool]) -> list[Heads]:
    """The heads of layers with a window and of those that see all keys, in a GGUF.

    Args:
        of: The hyperparameters.
        heads: Query heads.
        hidden: Width of the residual stream.
        local: Which layers have a window.

    Raises:
        TamizError: A value is missing or absurd, or layers of one kind differ.
    """
    listed = of.given(_KV_HEADS)
    counts = np.asarray(heads if listed is None else listed).ravel().tolist()
    counts = counts * len(local) if len(counts) == 1 else counts
    if len(counts) != len(local):
        of.reject(_KV_HEADS, f"{len(counts)} entries", f"{len(local)}, as many as layers")
    found = []
    for windowed, end in ((True, "_swa"), (False, "")):
        of_kind = {count for count, at in zip(counts, local, strict=True) if at == windowed}
        if len(of_kind) != 1 or (count := of_kind.pop()) < 1 or heads % count:
            expected = f"one divisor of {heads} in layers of each kind, some of which have a window"
            of.reject(_KV_HEADS, counts, expected)
        size = of.positive(f"attention.key_length{end}")
        if (values := of.positive(f"attention.value_length{end}", size)) != size:
            of.reject(f"attention.value_length{end}", values, f"{size}, as for keys")
        # Before anything of that size is made: a damaged count must not cost memory.
        at = f"blk.{list(local).index(windowed)}"
        of.tensor(f"{at}.attn_q.weight", (heads * size, hidden))
        alone = f"{at}.attn_v.weight" not in of.file.tensors
        found.append(Heads(count, size, alone))
    return found


def hf_gemma_fields(config: DecoderConfig, ffn: Sequence[int], rows: int) -> dict[str, Any]:
    """What ``config.json`` says of them.

    Args:
        config: The decoder.
        ffn: Widths of the feed-forward blocks.
        rows: Of the embedding of layers.
    """
    layers = config.attentions
    out: dict[str, Any] = {
        _WIDTH: config.input_width,
        "vocab_size_per_layer_input": rows,
        "num_kv_shared_layers": sum(layer.shares is not None for layer in layers),
    }
    wide = next((layer.heads for layer in layers if layer.heads), None)
    if wide is None:
        return out
    return out | {
        "global_head_dim": wide.size,
        "num_global_key_value_heads": wide.count,
        "attention_k_eq_v": wide.one_projection,
        "intermediate_size": min(ffn),
        "use_double_wide_mlp": min(ffn) < max(ffn),
        "enable_moe_block": config.experts is not None,
    }
