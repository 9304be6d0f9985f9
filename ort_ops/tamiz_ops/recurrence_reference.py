"""A gated delta net in NumPy and float64, and its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops.recurrent_layout import RecurrentLayout, tokens_of

Array = npt.NDArray[Any]

_UNIT_EPSILON = 1e-6


@dataclass(frozen=True)
class DeltaNetSizes:
    """Sizes of a gated delta net.

    Attributes:
        key_heads: Heads of q and k.
        value_heads: Heads of v; a multiple.
        d_k: Length of a head of q or k.
        d_v: Length of a head of v.
        taps: Tokens that the convolution mixes.
    """

    key_heads: int
    value_heads: int
    d_k: int
    d_v: int
    taps: int

    @property
    def group(self) -> int:
        """Value heads of a key head."""
        return self.value_heads // self.key_heads

    @property
    def width(self) -> int:
        """Channels of the convolution: q, k and v of all heads."""
        return 2 * self.key_heads * self.d_k + self.value_heads * self.d_v

    @property
    def layout(self) -> RecurrentLayout:
        """What a key head keeps of a sequence."""
        inputs = 2 * self.d_k + self.group * (self.d_v + 2)
        return RecurrentLayout(self.taps, inputs, (self.group, self.d_k, self.d_v))

    @property
    def size(self) -> int:
        """Floats that a key head keeps of a sequence."""
        return self.layout.size


def gated_delta_net(
    qkv: Array,
    z: Array,
    b: Array,
    a: Array,
    taps: Array,
    rate: Array,
    bias: Array,
    weight: Array,
    past: Array,
    attention_mask: Array,
    sequences: Array | None = None,
    slots: Array | None = None,
    *,
    key_heads: int,
    epsilon: float = 1e-6,
    tiled: int = 0,
) -> list[Array]:
    """S = decay S; S = S + k (beta (v - S^T k))^T; y = norm(S^T q) weight silu(z). [y, present].

    Sequences begin at their first token or go on from the last one that `past` has.
    """
    heads, d_v = len(rate), len(weight)
    d_k = (taps.shape[1] - heads * d_v) // (2 * key_heads)
    sizes = DeltaNetSizes(key_heads, heads, d_k, d_v, len(taps))
    x = [value.astype(np.float64) for value in (qkv, b, a)]
    present, y = past.astype(np.float64), np.zeros(z.shape)
    for at, slot, token, shown in tokens_of(qkv, attention_mask, sequences, slots):
        inputs = [value[at] * shown for value in x]
        for head in range(key_heads):
            group = range(sizes.group)
            own = [g * key_heads + head if tiled else head * sizes.group + g for g in group]
            found = _token(sizes, present[slot, head], token, head, own, inputs, taps, rate, bias)
            for value, o in zip(own, found, strict=True):
                part = slice(value * d_v, (value + 1) * d_v)
                normed = o / np.sqrt((o * o).mean() + epsilon) * weight
                y[at][part] = normed * _silu(z[at][part].astype(np.float64))
    return [y, present]


def _token(
    sizes: DeltaNetSizes,
    state: Array,
    token: int,
    head: int,
    own: list[int],
    inputs: list[Array],
    taps: Array,
    rate: Array,
    bias: Array,
) -> list[Array]:
    """o of each value head of a key head after a token; changes its state."""
    layout = sizes.layout
    qkv, b, a = inputs
    d_k, d_v, keys = sizes.d_k, sizes.d_v, sizes.key_heads * sizes.d_k
    channels = [np.arange(d_k) + head * d_k, np.arange(d_k) + keys + head * d_k]
    channels += [np.arange(d_v) + 2 * keys + value * d_v for value in own]
    chosen = np.concatenate(channels)
    layout.keep(state, token, np.concatenate([qkv[chosen], b[own], a[own]]))
    rows = layout.last_rows(state, token)[:, : len(chosen)]
    mixed = (taps[:, chosen] * rows).sum(axis=0)
    mixed = _silu(mixed)
    q, k = _unit(mixed[:d_k]) / np.sqrt(d_k), _unit(mixed[d_k : 2 * d_k])
    found = []
    for g, value in enumerate(own):
        v = mixed[2 * d_k + g * d_v :][:d_v]
        decay = np.exp(rate[value] * np.logaddexp(0, a[value] + bias[value]))
        s = decay * layout.before(state, token, g)
        s = s + np.outer(k, (v - s.T @ k) / (1 + np.exp(-b[value])))
        layout.after(state, token, g, s)
        found.append(s.T @ q)
    return found


def _silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def _unit(x: Array) -> Any:
    return x / np.sqrt((x * x).sum() + _UNIT_EPSILON)
