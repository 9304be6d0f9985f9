"""Short convolutions of a tiny LFM2: their weights, their keys, and their values in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import gguf

    from kit.tiny_gguf import TinyModel


def convolves(model: TinyModel, layer: int) -> bool:
    """Whether a layer convolves: all but each third one, and never the last."""
    return model.architecture == "lfm2" and layer % 3 != 2 and layer != model.layers - 1


def convolution_weights(
    model: TinyModel, name: str, normal: Callable[..., np.ndarray]
) -> dict[str, np.ndarray]:
    """The weights of the layer of that name."""
    return {
        f"{name}.conv.in_proj.weight": normal(3 * model.hidden, model.hidden),
        f"{name}.conv.conv.weight": normal(model.hidden, model.taps, scale=0.6),
        f"{name}.conv.out_proj.weight": normal(model.hidden, model.hidden),
    }


def add_convolution_keys(writer: gguf.GGUFWriter, model: TinyModel) -> None:
    """Writes the key/value heads, and which layers have none."""
    if model.architecture != "lfm2":
        writer.add_head_count_kv(1 if model.split else model.kv_heads)
        return
    layers = range(model.layers)
    writer.add_head_count_kv([0 if convolves(model, n) else model.kv_heads for n in layers])
    writer.add_shortconv_l_cache(model.taps)


def convolution(
    weights: dict[str, np.ndarray], name: str, x: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    """What a convolution adds to the residual stream, in float64; padding is nothing."""
    b, c, v = np.split(x @ weights[f"{name}.in_proj.weight"].T, 3, axis=-1)
    taps = weights[f"{name}.conv.weight"]
    u = b * v * (mask[..., None] != 0)
    u = np.pad(u, ((0, 0), (taps.shape[1] - 1, 0), (0, 0)))
    y = sum(taps[:, j] * u[:, j : j + x.shape[1]] for j in range(taps.shape[1]))
    return c * y @ weights[f"{name}.out_proj.weight"].T
