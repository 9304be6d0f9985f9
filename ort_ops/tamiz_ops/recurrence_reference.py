"""A gated delta net in NumPy and float64, and the layout of what it keeps of a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: Tokens of a block; so many can be forgotten.
BLOCK = 16
_HEADER, _STATES, _LINE = 16, 3, 16
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
    def rows(self) -> int:
        """Tokens whose inputs are kept."""
        return 2 * BLOCK + self.taps - 1

    @property
    def row(self) -> int:
        """Floats of such a token, in a key head."""
        return -(-(2 * self.d_k + self.group * (self.d_v + 2)) // _LINE) * _LINE

    @property
    def size(self) -> int:
        """Floats that a key head keeps of a sequence."""
        return _HEADER + self.rows * self.row + _STATES * self.group * self.d_k * self.d_v

    def parts(self, state: Array) -> tuple[Array, Array, Array]:
        """Views of what a key head keeps: numbers of tokens, rows, states ``[3, group, …]``."""
        end = _HEADER + self.rows * self.row
        matrices = state[end:].reshape(_STATES, self.group, self.d_k, self.d_v)
        return state[:_HEADER], state[_HEADER:end].reshape(self.rows, self.row), matrices


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
    rows = [(row, row, 0, attention_mask.shape[1] - qkv.shape[1]) for row in range(len(qkv))]
    counts = [qkv.shape[1]] * len(rows)
    if sequences is not None and len(sequences):
        assert slots is not None
        counts = [abs(int(count)) for count in sequences[:, 1]]
        firsts = np.cumsum([0, *counts]).tolist()
        begins = sequences[:, 0].tolist()
        rows = list(zip([0] * len(counts), slots.tolist(), firsts, begins, strict=False))
    else:
        shown = attention_mask[:, -qkv.shape[1] :, None] != 0
        x = [np.where(shown, value, 0) for value in x]
    present, y = past.astype(np.float64), np.zeros(z.shape)
    for (row, slot, first, begin), count in zip(rows, counts, strict=True):
        for token in range(begin, begin + count):
            at = row, first + token - begin
            inputs = [value[at] for value in x]
            for head in range(key_heads):
                group = range(sizes.group)
                own = [g * key_heads + head if tiled else head * sizes.group + g for g in group]
                found = _token(
                    sizes, present[slot, head], token, head, own, inputs, taps, rate, bias
                )
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
    numbers, rows, matrices = sizes.parts(state)
    assert token in (0, numbers[0]), "the reference forgets nothing"
    qkv, b, a = inputs
    d_k, d_v, keys = sizes.d_k, sizes.d_v, sizes.key_heads * sizes.d_k
    channels = [np.arange(d_k) + head * d_k, np.arange(d_k) + keys + head * d_k]
    channels += [np.arange(d_v) + 2 * keys + value * d_v for value in own]
    chosen = np.concatenate(channels)
    row = np.concatenate([qkv[chosen], b[own], a[own]])
    rows[token % sizes.rows, : len(row)] = row
    before = [token - sizes.taps + 1 + tap for tap in range(sizes.taps)]
    mixed = sum(
        taps[tap][chosen] * rows[at % sizes.rows, : len(chosen)]
        for tap, at in enumerate(before)
        if at >= 0
    )
    mixed = _silu(mixed)
    q, k = _unit(mixed[:d_k]) / np.sqrt(d_k), _unit(mixed[d_k : 2 * d_k])
    found = []
    for g, value in enumerate(own):
        v = mixed[2 * d_k + g * d_v :][:d_v]
        decay = np.exp(rate[value] * np.logaddexp(0, a[value] + bias[value]))
        last = matrices[(token - 1) // BLOCK % _STATES, g] if token else np.zeros((d_k, d_v))
        s = decay * last
        s = s + np.outer(k, (v - s.T @ k) / (1 + np.exp(-b[value])))
        matrices[token // BLOCK % _STATES, g] = s
        found.append(s.T @ q)
    numbers[1] = max(numbers[1], token + 1) if token else 1
    numbers[0] = token + 1
    return found


def _silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def _unit(x: Array) -> Any:
    return x / np.sqrt((x * x).sum() + _UNIT_EPSILON)
