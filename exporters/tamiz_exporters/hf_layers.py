"""What kinds of layers a ``config.json`` says that a decoder has."""

from __future__ import annotations

from tamiz_exporters.architecture import Architecture
from tamiz_exporters.decoder_config import (
    DecoderConfig,
    Heads,
    LayerAttention,
    Mixer,
    ShortConvolution,
)
from tamiz_exporters.delta_fields import hf_delta_net
from tamiz_exporters.gemma_fields import sharing
from tamiz_exporters.hf_fields import Fields
from tamiz_exporters.hf_rope import HfRope
from tamiz_exporters.mamba_fields import hf_attending, hf_layers

_FFN = "intermediate_size"


def mixers(
    of: Fields,
    traits: Architecture,
    rope: HfRope,
    hidden: int,
    count: int,
    wide: Heads | None = None,
) -> tuple[Mixer, ...]:
    """How each of so many layers mixes tokens.

    Args:
        of: The configuration.
        traits: The architecture.
        rope: The rotary embeddings.
        hidden: Width of the residual stream.
        count: Number of layers.
        wide: The heads of layers that see all keys, where they are others.

    Raises:
        TamizError: The configuration names other kinds of layers.
    """
    if (mamba := traits.mamba) is not None:
        rotary = None if mamba.alone else rope.scaled()
        return hf_layers(of, mamba, hidden, count, rotary)
    if not all(attends := attending(of, traits, count)):
        attention = LayerAttention(rope.scaled())
        other = hf_delta_net(of) if traits.delta else _convolution(of)
        return tuple(attention if at else other for at in attends)
    reach, turns = windows(of, traits, count), turning(of, traits, count)
    if traits.turns_in_windows and any(reach):
        turns = [window > 0 for window in reach]
    if (layout := of.given("rope_layout")) is not None and layout != [int(at) for at in turns]:
        of.reject("rope_layout", layout, f"{[int(at) for at in turns]}, as windows have it")
    full = rope.scaled()
    local = rope.local() if traits.local_unscaled else full
    layers = tuple(
        LayerAttention(
            (local if window else full) if turn else None,
            window if window < rope.context else 0,
            heads=None if window else wide,
        )
        for turn, window in zip(turns, reach, strict=True)
    )
    if not traits.normed_values:
        return layers
    key = "num_kv_shared_layers"
    return sharing(layers, of.whole(key, 15 if traits.streams else 0), key, of.reject)


def _convolution(of: Fields) -> ShortConvolution:
    """The short convolution of a layer."""
    if (taps := of.positive("conv_L_cache", 3)) < 2:
        of.reject("conv_L_cache", taps, "at least 2")
    return ShortConvolution(taps)


def bidirectional(of: Fields) -> bool:
    """Whether tokens see later ones."""
    key = "use_bidirectional_attention"
    return of.given(key) != "vision" and of.flag(key) is True  # of pictures alone


def attending(of: Fields, traits: Architecture, count: int) -> list[bool]:
    """Which of so many layers attend.

    Raises:
        TamizError: The configuration names other kinds of layers, or none that attends.
    """
    if traits.mamba is not None:
        return hf_attending(of, traits.mamba, count)
    if not (traits.convolves or traits.delta):
        return [True] * count
    if (kinds := of.given("layer_types")) is None:
        if traits.delta:
            every = of.positive("full_attention_interval", 4)
            return [number % every == 0 for number in range(1, count + 1)]
        listed = of.given("full_attn_idxs")
        if listed is None:
            return [True] * count
        if not isinstance(listed, list) or not {*map(str, listed)} & {*map(str, range(count))}:
            of.reject("full_attn_idxs", listed, f"numbers of layers from 0 to {count - 1}")
        return [number in listed for number in range(count)]
    other = "linear_attention" if traits.delta else "conv"
    known = {other, "full_attention"}
    if not isinstance(kinds, list) or len(kinds) != count or {*map(str, kinds)} - known:
        of.reject("layer_types", kinds, f"{count} times {other} or full_attention")
    if "full_attention" not in kinds:
        of.reject("layer_types", kinds, "a layer of full_attention")
    return [kind == "full_attention" for kind in kinds]


def turning(of: Fields, traits: Architecture, count: int) -> list[bool]:
    """Which of so many layers have a rotary embedding.

    Raises:
        TamizError: The configuration names something else.
    """
    if not traits.no_rope_every:
        return [not (traits.positions or traits.alibi)] * count
    given = of.given("no_rope_layers") or None  # Llama 4 says nothing by an empty list
    if given is None:
        every = of.positive("no_rope_layer_interval", traits.no_rope_every)
        return [number % every != 0 for number in range(1, count + 1)]
    if not isinstance(given, list) or len(given) != count or {*map(str, given)} - {"0", "1"}:
        of.reject("no_rope_layers", given, f"{count} times 0 or 1")
    return [value == 1 for value in given]


def windows(of: Fields, traits: Architecture, count: int) -> list[int]:
    """The window of each of so many layers, in tokens; 0 where it sees all keys.

    Raises:
        TamizError: The configuration names other kinds of layers.
    """
    if of.values.get("sliding_window", traits.window or None) in (None, 0):
        return [0] * count  # transformers 5 writes 0 where Qwen 2 MoE has none
    window = of.positive("sliding_window", traits.window)
    if bidirectional(of):  # half of it on each side, as transformers reads it
        window = window // 2 + 1
    if (layout := of.given("sliding_window_layout")) is not None:
        if not isinstance(layout, list) or len(layout) != count or {*map(str, layout)} - {"0", "1"}:
            of.reject("sliding_window_layout", layout, f"{count} times 0 or 1")
        return [window * (value == 1) for value in layout]
    if (kinds := of.given("layer_types")) is not None:
        window_of = {"full_attention": 0, "sliding_attention": window}
        if not isinstance(kinds, list) or len(kinds) != count or {*map(str, kinds)} - {*window_of}:
            of.reject("layer_types", kinds, f"{count} times {' or '.join(window_of)}")
        return [window_of[str(kind)] for kind in kinds]
    if traits.global_every == 0:
        return [window] * count
    if traits.global_every:
        key = "sliding_window_pattern"
        key = key if of.given(key) is not None else f"_{key}"
        every = of.positive(key, traits.global_every)
        return [window if number % every else 0 for number in range(1, count + 1)]
    if of.flag("use_sliding_window"):
        first = of.given("max_window_layers")
        if traits.no_rope_every or type(first) is not int or first < 0:
            of.reject("use_sliding_window", True, "layer_types or max_window_layers beside it")
        return [window if layer >= first else 0 for layer in range(count)]
    return [0] * count


def widths(of: Fields, traits: Architecture, config: DecoderConfig, hidden: int) -> list[int]:
    """Width of the feed-forward block of each layer.

    Args:
        of: The configuration.
        traits: The architecture.
        config: The decoder's shape.
        hidden: Width of the residual stream.

    Raises:
        TamizError: A value is missing or absurd.
    """
    layers = len(config.layers)
    if not traits.attends:
        return [0] * layers
    if traits.ffn_adjusted:
        return [_adjusted(of)] * layers
    mixed = config.experts is not None and len(config.experts.layers) == layers
    # A model of experts alone need not say it.
    usual = hidden * traits.ffn_factor or None
    width = of.uniform(traits.ffn_key, 1 if mixed and not traits.wide_heads else usual)
    if not (traits.wide_heads and of.flag("use_double_wide_mlp")):
        return [width] * layers
    return [width * (1 + (attention.shares is not None)) for attention in config.attentions]


def _adjusted(of: Fields) -> int:
    """The width of LFM2, two thirds of what it says."""
    width = of.positive("block_ff_dim" if of.given("block_ff_dim") is not None else _FFN)
    if of.flag("block_auto_adjust_ff_dim") is False:
        return width
    width = int(of.number("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
    unit = of.positive("block_multiple_of", 256)
    return -(-width // unit) * unit
