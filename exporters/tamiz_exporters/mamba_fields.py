"""What sources say of selective state spaces, and which layers have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import numpy as np

from tamiz_exporters.decoder_config import (
    DecoderConfig,
    LayerAttention,
    Mamba,
    Mamba2,
    Mixer,
    NoMixer,
    Rotary,
    SideBySide,
    mamba_of,
)
from tamiz_exporters.gguf_hyperparameters import Hyperparameters
from tamiz_exporters.hf_fields import Fields
from tamiz_exporters.mamba_traits import MambaTraits, ScanTraits, StateSpaceTraits
from tamiz_exporters.scan_fields import gguf_scan, hf_scan, hf_scan_fields, hf_spread
from tamiz_ops.mamba_reference import Mamba2Sizes

#: Largest head, and most tokens of the convolution, as the op has them.
_MOST_OF_HEAD, _MOST_TAPS = 256, 16
_EXPAND = 2
#: Every how many layers of Jamba one attends, and the first; likewise of those with experts.
_ATTENDING, _EXPERT_LAYERS = (8, 4), (2, 1)
_MAMBA, _ATTENTION, _FEED_FORWARD, _EXPERTS = "mamba", "attention", "mlp", "moe"
#: What ``config.json`` calls the kinds of layers.
_KINDS = {
    "mamba": _MAMBA,
    "linear_attention": _MAMBA,
    "attention": _ATTENTION,
    "full_attention": _ATTENTION,
}
_ONE_BLOCK_KINDS = {**_KINDS, "mlp": _FEED_FORWARD, "moe": _EXPERTS}
_PATTERN = {"M": _MAMBA, "*": _ATTENTION, "-": _FEED_FORWARD, "E": _EXPERTS}


class _Settings(Protocol):
    def reject(self, key: str, found: object, expected: str) -> NoReturn: ...


def hf_layers(
    of: Fields, traits: StateSpaceTraits, hidden: int, count: int, rotary: Rotary | None
) -> tuple[Mixer, ...]:
    """How each layer of a ``config.json`` mixes tokens.

    Args:
        of: The fields.
        traits: What the architecture says of its state spaces.
        hidden: Width of the residual stream.
        count: Number of layers.
        rotary: The rotary embedding of layers that attend, where they have one.

    Raises:
        TamizError: A value is missing, absurd or not supported.
    """
    attention = LayerAttention(rotary if traits.beside or _rotates(of) else None)
    mamba = _hf_mamba(of, traits, hidden)
    if traits.beside:
        assert isinstance(mamba, Mamba2)
        sides = SideBySide(
            attention,
            mamba,
            of.number("attention_in_multiplier", 1.0),
            of.number("attention_out_multiplier", 1.0),
        )
        return (sides,) * count
    kinds = hf_kinds(of, traits, count)
    mixers: dict[str, Mixer] = {_MAMBA: mamba, _ATTENTION: attention}
    return tuple(mixers.get(kind, NoMixer()) for kind in kinds)


def _rotates(of: Fields) -> bool:
    key = "position_embedding_type"
    kind = of.text(key, "nope")
    if kind not in ("nope", "rope"):
        of.reject(key, kind, "rope, nope or null")
    return kind == "rope"


def falcon_scales(of: Fields, head_dim: int) -> dict[str, float]:
    """The factors of Falcon-H1 beside those of its mixers.

    Args:
        of: The fields.
        head_dim: Length of a head of attention.

    Raises:
        TamizError: One is absurd.
    """
    gate, down = 1.0, 1.0
    if of.given("mlp_multipliers") is not None:
        gate, down = of.numbers("mlp_multipliers", 2)
    return {
        "scale": head_dim**-0.5 * of.number("key_multiplier", 1.0),
        "embedding_scale": of.number("embedding_multiplier", 1.0),
        "logit_divisor": 1 / of.number("lm_head_multiplier", 1.0),
        "gate_scale": gate,
        "down_scale": down,
    }


def hf_kinds(of: Fields, traits: StateSpaceTraits, count: int | None = None) -> list[str]:
    """The kind of each layer, where a layer has one.

    Raises:
        TamizError: The configuration names other kinds, or no layer attends.
    """
    if traits.alone:
        return [_MAMBA] * (of.positive("num_hidden_layers") if count is None else count)
    if isinstance(traits, ScanTraits):
        return _hf_spread_kinds(of, traits, count or of.positive("num_hidden_layers"))
    if isinstance(traits, MambaTraits) and traits.listed_key:
        return _hf_listed_kinds(of, traits.listed_key, count or of.positive("num_hidden_layers"))
    names = ("hybrid_override_pattern", "layers_block_type", "layer_types")
    key = next((name for name in names if of.given(name) is not None), names[-1])
    listed, known = of.given(key), _ONE_BLOCK_KINDS if traits.one_block else _KINDS
    if isinstance(listed, str):
        listed, known = list(listed), _PATTERN
    fits = isinstance(listed, list) and count in (None, len(listed))
    if not fits or {*map(str, listed)} - {*known}:
        of.reject(key, listed, f"{count or 'some'} times {' or '.join(known)}")
    kinds = [known[str(kind)] for kind in listed]
    if _ATTENTION not in kinds:
        of.reject(key, listed, "a layer that attends")
    return kinds


def _hf_listed_kinds(of: Fields, key: str, count: int) -> list[str]:
    """The kinds of layers of which a field lists those that attend."""
    listed = of.given(key)
    if (
        not isinstance(listed, list)
        or not listed
        or not {*map(str, listed)} <= {*map(str, range(count))}
    ):
        of.reject(key, listed, f"numbers of layers from 0 to {count - 1}")
    return [_ATTENTION if number in listed else _MAMBA for number in range(count)]


def _hf_spread_kinds(of: Fields, traits: ScanTraits, count: int) -> list[str]:
    """The kinds of layers of which every so many attend."""
    attends = hf_spread(of, traits.attention_keys, _ATTENDING, count)
    if not any(attends):
        of.reject(traits.attention_keys[1], of.given(traits.attention_keys[1]), f"below {count}")
    return [_ATTENTION if at else _MAMBA for at in attends]


def hf_expert_layers(of: Fields, traits: StateSpaceTraits) -> list[int] | None:
    """Which layers are a mixture of experts; None where their kinds do not say it."""
    if isinstance(traits, ScanTraits) and traits.expert_keys:
        count = of.positive("num_hidden_layers")
        mixed = hf_spread(of, traits.expert_keys, _EXPERT_LAYERS, count)
        return [n for n in range(count) if mixed[n] and of.positive("num_experts") > 1]
    if not traits.one_block:
        return None
    return [n for n, kind in enumerate(hf_kinds(of, traits)) if kind == _EXPERTS]


def hf_attending(of: Fields, traits: StateSpaceTraits, count: int) -> list[bool]:
    """Which layers attend."""
    if traits.beside:
        return [True] * count
    return [kind == _ATTENTION for kind in hf_kinds(of, traits, count)]


def _hf_mamba(of: Fields, traits: StateSpaceTraits, hidden: int) -> Mamba | Mamba2:
    if isinstance(traits, ScanTraits):
        return hf_scan(of, traits, hidden)
    assert isinstance(traits, MambaTraits)
    heads = of.positive(traits.heads_key)
    inner = of.positive("mamba_d_ssm", of.positive("mamba_expand", _EXPAND) * hidden)
    given = of.given(traits.head_key)
    d_head = max(1, inner // heads) if given in (None, "auto") else of.positive(traits.head_key)
    sizes = Mamba2Sizes(
        heads,
        of.positive(traits.groups_key, 1),
        d_head,
        of.positive(traits.state_key),
        of.positive(traits.taps_key, 4),
    )
    _check(of, sizes, (traits.groups_key, traits.head_key, traits.state_key, traits.taps_key))
    if (activation := of.text(traits.activation_key, "silu")) != "silu":
        of.reject(traits.activation_key, activation, "silu")
    normed = not traits.norm_key or of.flag(traits.norm_key) is True
    first = bool(traits.norm_first_key) and of.flag(traits.norm_first_key) is not False
    scales = of.given("ssm_multipliers")
    return Mamba2(
        sizes,
        normed,
        normed and first,
        _limits(of),
        of.number("ssm_in_multiplier", 1.0),
        (1.0,) * 5 if scales is None else tuple(of.numbers("ssm_multipliers", 5)),
        of.number("ssm_out_multiplier", 1.0),
    )


def _limits(of: Fields) -> tuple[float, float]:
    """Least and largest step; transformers 5 may write infinity as an object."""
    given = of.given("time_step_limit")
    if given is None:
        return 0.0, math.inf
    if not isinstance(given, list) or len(given) != 2:
        of.reject("time_step_limit", given, "two numbers")
    numbers = []
    for value in given:
        number = math.inf if value == {"__float__": "Infinity"} else value
        if not isinstance(number, int | float) or not number >= 0:
            of.reject("time_step_limit", given, "two numbers from 0 on")
        numbers.append(float(number))
    if numbers[0] > numbers[1]:
        of.reject("time_step_limit", given, "the smaller number first")
    return numbers[0], numbers[1]


def gguf_layers(
    of: Hyperparameters, traits: StateSpaceTraits, attention: Sequence[LayerAttention]
) -> tuple[Mixer, ...]:
    """How each layer of a GGUF mixes tokens.

    Args:
        of: The hyperparameters.
        traits: What the architecture says of its state spaces.
        attention: How each layer would attend.

    Raises:
        TamizError: A value is missing, absurd or not supported.
    """
    mamba = _gguf_mamba(of, traits)
    attends = gguf_mamba_attending(of, traits, len(attention))
    blocks = [False] * len(attention)
    if traits.one_block and not traits.alone:
        blocks = gguf_feed_forward(of, len(attention))
    layers: list[Mixer] = []
    for each, attending, block in zip(attention, attends, blocks, strict=True):
        if traits.beside:
            assert isinstance(mamba, Mamba2)
            layers.append(SideBySide(each, mamba))
        else:
            layers.append(each if attending else NoMixer() if block else mamba)
    return tuple(layers)


def _gguf_mamba(of: Hyperparameters, traits: StateSpaceTraits) -> Mamba | Mamba2:
    if isinstance(traits, ScanTraits):
        return gguf_scan(of, traits)
    heads, inner = of.positive("ssm.time_step_rank"), of.positive("ssm.inner_size")
    if inner % heads:
        of.reject("ssm.inner_size", inner, f"a multiple of the {heads} heads")
    sizes = Mamba2Sizes(
        heads,
        of.positive("ssm.group_count"),
        inner // heads,
        of.positive("ssm.state_size"),
        of.positive("ssm.conv_kernel"),
    )
    keys = ("ssm.group_count", "ssm.inner_size", "ssm.state_size", "ssm.conv_kernel")
    _check(of, sizes, keys)
    return Mamba2(sizes, any(name.endswith(".ssm_norm.weight") for name in of.file.tensors))


def gguf_mamba_attending(of: Hyperparameters, traits: StateSpaceTraits, count: int) -> list[bool]:
    """Which of so many layers of a GGUF attend.

    Raises:
        TamizError: No key says it, or no layer attends.
    """
    if traits.beside or traits.alone:
        return [traits.beside] * count
    key = "attention.head_count_kv"
    heads = _listed(of, key, count)
    if not any(heads) or (all(heads) and not traits.one_block):
        of.reject(key, heads, "0 where a layer has a state space, and heads where one attends")
    return [number > 0 for number in heads]


def gguf_feed_forward(of: Hyperparameters, count: int) -> list[bool]:
    """Which of so many layers of a GGUF are feed-forward blocks alone."""
    return [width > 0 for width in _listed(of, "feed_forward_length", count)]


def gguf_width(of: Hyperparameters) -> int:
    """Width of the feed-forward blocks of a GGUF, which are 0 wide in other layers.

    Raises:
        TamizError: They differ.
    """
    key = "feed_forward_length"
    listed = of.given(key)
    widths = set(listed.tolist()) - {0} if isinstance(listed, np.ndarray) else set()
    if len(widths) != 1:
        of.reject(key, listed, "0, and one number where layers are feed-forward blocks")
    return int(widths.pop())


def _listed(of: Hyperparameters, key: str, count: int) -> list[int]:
    listed = of.given(key)
    if not isinstance(listed, np.ndarray):
        of.reject(key, listed, "a list by layer")
    if len(listed) < count:  # more where layers predict tokens further ahead
        of.reject(key, f"{len(listed)} entries", f"{count}, as many as layers")
    return [int(number) for number in listed[:count].tolist()]


def hf_mamba_fields(
    config: DecoderConfig, traits: StateSpaceTraits | None, hidden: int
) -> dict[str, Any]:
    """What ``config.json`` says of layers some of which have state spaces.

    Args:
        config: The decoder.
        traits: What the architecture says of its state spaces; None where it has none.
        hidden: Width of the residual stream.
    """
    if isinstance(traits, ScanTraits):
        return hf_scan_fields(config, traits, hidden)
    layers = config.layers
    mambas = [mamba for layer in layers if (mamba := mamba_of(layer)) is not None]
    if not isinstance(traits, MambaTraits) or not mambas:
        return {}
    sizes, out = mambas[0].sizes, dict[str, Any]()
    if not (traits.beside or traits.alone):
        kinds = {Mamba2: "linear_attention", NoMixer: "moe" if config.experts else "mlp"}
        out["layers_block_type"] = [kinds.get(type(layer), "full_attention") for layer in layers]
    if traits.norm_key:
        out[traits.norm_key] = mambas[0].normed
    if traits.norm_first_key:
        out[traits.norm_first_key] = mambas[0].norm_first
    return out | {
        traits.heads_key: sizes.heads,
        traits.groups_key: sizes.groups,
        traits.head_key: sizes.d_head,
        traits.state_key: sizes.d_state,
        traits.taps_key: sizes.taps,
    }


def _check(of: _Settings, sizes: Mamba2Sizes, keys: Sequence[str]) -> None:
    """Refuses sizes that the op lacks; `keys` name groups, head, state and taps."""
    groups, head, state, taps = keys
    if sizes.heads % sizes.groups:
        of.reject(groups, sizes.groups, f"a divisor of the {sizes.heads} heads")
    if sizes.d_head > _MOST_OF_HEAD:
        of.reject(head, sizes.d_head, f"at most {_MOST_OF_HEAD} in a head")
    if sizes.d_state % 2 or sizes.d_state > _MOST_OF_HEAD:
        of.reject(state, sizes.d_state, f"an even number up to {_MOST_OF_HEAD}")
    if sizes.taps > _MOST_TAPS:
        of.reject(taps, sizes.taps, f"at most {_MOST_TAPS}")
