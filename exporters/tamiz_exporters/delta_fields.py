"""What sources say of gated delta nets: their heads, and which layers have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tamiz_exporters.decoder_config import DeltaNet, Mixer
from tamiz_exporters.gguf_hyperparameters import Hyperparameters
from tamiz_exporters.hf_fields import Fields
from tamiz_ops.recurrence_reference import DeltaNetSizes

#: Largest head, and most tokens of the convolution, as the op has them.
_MOST_OF_HEAD, _MOST_TAPS = 256, 16


def hf_delta_net(of: Fields) -> DeltaNet:
    """The gated delta nets of a ``config.json``; all layers have the same.

    Args:
        of: The fields.

    Raises:
        TamizError: A value is missing, absurd or not supported.
    """
    sizes = DeltaNetSizes(
        key_heads=of.positive("linear_num_key_heads", 16),
        value_heads=of.positive("linear_num_value_heads", 32),
        d_k=of.positive("linear_key_head_dim", 128),
        d_v=of.positive("linear_value_head_dim", 128),
        taps=of.positive("linear_conv_kernel_dim", 4),
    )
    keys = ("num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    _check(of, sizes, [f"linear_{key}" for key in keys])
    return DeltaNet(sizes)


def gguf_delta_net(of: Hyperparameters, tiled: bool) -> DeltaNet:
    """The gated delta nets of a GGUF; all layers have the same.

    Args:
        of: The hyperparameters.
        tiled: See `DeltaNet`.

    Raises:
        TamizError: A value is missing, absurd or not supported.
    """
    heads, inner = of.positive("ssm.time_step_rank"), of.positive("ssm.inner_size")
    if inner % heads:
        of.reject("ssm.inner_size", inner, f"a multiple of the {heads} value heads")
    sizes = DeltaNetSizes(
        key_heads=of.positive("ssm.group_count"),
        value_heads=heads,
        d_k=of.positive("ssm.state_size"),
        d_v=inner // heads,
        taps=of.positive("ssm.conv_kernel"),
    )
    keys = ("ssm.time_step_rank", "ssm.state_size", "ssm.inner_size", "ssm.conv_kernel")
    _check(of, sizes, keys)
    return DeltaNet(sizes, tiled)


def gguf_attending(of: Hyperparameters, count: int) -> list[bool]:
    """Which of so many layers of a GGUF attend.

    Raises:
        TamizError: Values are absurd, or no layer attends.
    """
    key, listed = "attention.recurrent_layers", of.given("attention.recurrent_layers")
    if isinstance(listed, np.ndarray):
        if len(listed) < count:
            of.reject(key, f"{len(listed)} entries", f"{count}, as many as layers")
        attending = [not recurrent for recurrent in listed[:count].tolist()]
    else:
        key, every = "full_attention_interval", of.positive("full_attention_interval", 4)
        attending = [number % every == 0 for number in range(1, count + 1)]
    if not any(attending):
        of.reject(key, of.given(key), "a layer that attends")
    return attending


def hf_delta_fields(layers: Sequence[Mixer]) -> dict[str, Any]:
    """What ``config.json`` says of layers some of which are gated delta nets."""
    nets = [layer for layer in layers if isinstance(layer, DeltaNet)]
    if not nets:
        return {}
    sizes = nets[0].sizes
    kinds = ["linear" if isinstance(layer, DeltaNet) else "full" for layer in layers]
    return {
        "layer_types": [f"{kind}_attention" for kind in kinds],
        "linear_num_key_heads": sizes.key_heads,
        "linear_num_value_heads": sizes.value_heads,
        "linear_key_head_dim": sizes.d_k,
        "linear_value_head_dim": sizes.d_v,
        "linear_conv_kernel_dim": sizes.taps,
    }


def _check(of: Fields | Hyperparameters, sizes: DeltaNetSizes, keys: Sequence[str]) -> None:
    """Refuses sizes that the op lacks; `keys` name value heads, d_k, d_v and taps."""
    heads, d_k, d_v, taps = keys
    if sizes.value_heads % sizes.key_heads:
        of.reject(heads, sizes.value_heads, f"a multiple of the {sizes.key_heads} key heads")
    if sizes.d_k % 2 or sizes.d_k > _MOST_OF_HEAD:
        of.reject(d_k, sizes.d_k, f"an even number up to {_MOST_OF_HEAD}")
    if sizes.d_v > _MOST_OF_HEAD:
        of.reject(d_v, sizes.d_v, f"at most {_MOST_OF_HEAD} in a value head")
    if sizes.taps > _MOST_TAPS:
        of.reject(taps, sizes.taps, f"at most {_MOST_TAPS}")
