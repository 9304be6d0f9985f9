"""What sources say of selective state spaces of Mamba's first version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from tamiz_exporters.decoder_config import DecoderConfig, LayerAttention, Mamba
from tamiz_exporters.gguf_hyperparameters import Hyperparameters
from tamiz_exporters.hf_fields import Fields
from tamiz_exporters.mamba_traits import ScanTraits
from tamiz_ops.scan_reference import ScanSizes

#: Longest state of a channel, and most tokens of the convolution, as the ops have them.
_MOST_STATES, _MOST_TAPS = 256, 16
_EXPAND, _TAPS, _STATES, _EPSILON = 2, 4, 16, 1e-6
#: Of the residual stream, so many elements are one of what dt is made of, where nothing says it.
_PER_RANK = 16


class _Settings(Protocol):
    def reject(self, key: str, found: object, expected: str) -> NoReturn: ...


def hf_scan(of: Fields, traits: ScanTraits, hidden: int) -> Mamba:
    """The state space of the layers of a ``config.json``.

    Args:
        of: The fields.
        traits: What the architecture says of it.
        hidden: Width of the residual stream.

    Raises:
        TamizError: A value is missing, absurd or not supported.
    """
    channels = of.positive(traits.expand_key, _EXPAND) * hidden
    if traits.width_key:
        channels = of.positive(traits.width_key, channels)
    given, rank = of.given(traits.rank_key), -(-hidden // _PER_RANK)
    if (activation := of.text(traits.activation_key, "silu")) != "silu":
        of.reject(traits.activation_key, activation, "silu")
    states, taps = of.positive(traits.state_key, _STATES), of.positive(traits.taps_key, _TAPS)
    _check(of, traits.state_key, states, traits.taps_key, taps)
    return Mamba(
        ScanSizes(channels, states),
        taps,
        rank if given == "auto" else of.positive(traits.rank_key, rank),
        of.number(traits.epsilon_key, _EPSILON) if traits.epsilon_key else 0.0,
        traits.weighed,
    )


def gguf_scan(of: Hyperparameters, traits: ScanTraits) -> Mamba:
    """The state space of the layers of a GGUF.

    Args:
        of: The hyperparameters.
        traits: What the architecture says of it.

    Raises:
        TamizError: A value is missing, absurd or not supported.
    """
    states, taps = of.positive("ssm.state_size"), of.positive("ssm.conv_kernel")
    _check(of, "ssm.state_size", states, "ssm.conv_kernel", taps)
    return Mamba(
        ScanSizes(of.positive("ssm.inner_size"), states),
        taps,
        of.positive("ssm.time_step_rank"),
        of.number("attention.layer_norm_rms_epsilon") if traits.epsilon_key else 0.0,
        traits.weighed,
    )


def hf_spread(of: Fields, keys: tuple[str, ...], usual: tuple[int, int], count: int) -> list[bool]:
    """Which of so many layers are of a kind that every so many have.

    Args:
        of: The fields.
        keys: Every how many layers, and the first of them.
        usual: Both where a field is missing.
        count: Number of layers.

    Raises:
        TamizError: A value is absurd.
    """
    every, first = of.positive(keys[0], usual[0]), of.whole(keys[1], usual[1])
    if first >= every:
        of.reject(keys[1], first, f"below {keys[0]}, {every}")
    return [number % every == first for number in range(count)]


def hf_scan_fields(config: DecoderConfig, traits: ScanTraits, hidden: int) -> dict[str, Any]:
    """What ``config.json`` says of layers some of which have such state spaces.

    Args:
        config: The decoder.
        traits: What the architecture says of its state spaces.
        hidden: Width of the residual stream.
    """
    mamba = next(layer for layer in config.layers if isinstance(layer, Mamba))
    sizes, experts = mamba.sizes, config.experts
    attending = [n for n, layer in enumerate(config.layers) if isinstance(layer, LayerAttention)]
    mixed = sorted(experts.layers) if experts else [0]
    count = len(config.layers)
    return {
        traits.state_key: sizes.d_state,
        traits.taps_key: mamba.taps,
        traits.rank_key: mamba.rank,
        traits.expand_key: sizes.channels // hidden,
        **({traits.width_key: sizes.channels} if traits.width_key else {}),
        **({traits.epsilon_key: mamba.epsilon} if traits.epsilon_key else {}),
        **_spread(traits.attention_keys, attending, count),
        **_spread(traits.expert_keys, mixed, count),
        **({"num_experts": 1} if traits.expert_keys and not experts else {}),
    }


def _spread(keys: tuple[str, ...], chosen: Sequence[int], count: int) -> dict[str, int]:
    """Every how many of so many layers one is chosen, and the first of them."""
    if not keys:
        return {}
    every = chosen[1] - chosen[0] if len(chosen) > 1 else count
    return dict(zip(keys, (every, chosen[0]), strict=True))


def _check(of: _Settings, state_key: str, states: int, taps_key: str, taps: int) -> None:
    """Refuses sizes that the ops lack."""
    if states > _MOST_STATES:
        of.reject(state_key, states, f"at most {_MOST_STATES}")
    if not 2 <= taps <= _MOST_TAPS:
        of.reject(taps_key, taps, f"2 to {_MOST_TAPS}")
