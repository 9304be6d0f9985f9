"""Mamba-2 in NumPy and float64, and its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops.recurrent_layout import RecurrentLayout, tokens_of

Array = npt.NDArray[Any]

#: Most heads of a part.
_MOST_HEADS = 4


@dataclass(frozen=True)
class Mamba2Sizes:
    """Sizes of the selective state space of Mamba-2.

    Attributes:
        heads: Heads of x.
        groups: Groups of heads, which share B and C.
        d_head: Length of a head.
        d_state: Length of B and C.
        taps: Tokens that the convolution mixes.
    """

    heads: int
    groups: int
    d_head: int
    d_state: int
    taps: int

    @property
    def inner(self) -> int:
        """Length of all heads."""
        return self.heads * self.d_head

    @property
    def channels(self) -> int:
        """Channels of the convolution: x of all heads, B and C of all groups."""
        return self.inner + 2 * self.groups * self.d_state

    @property
    def width(self) -> int:
        """Columns of the first projection: z, the channels, dt of all heads."""
        return self.inner + self.channels + self.heads

    @property
    def part(self) -> int:
        """Heads of a part: the largest divisor of those of a group, up to 4."""
        group = self.heads // self.groups
        return max(count for count in range(1, _MOST_HEADS + 1) if group % count == 0)

    @property
    def parts(self) -> int:
        """Parts of heads."""
        return self.heads // self.part

    @property
    def layout(self) -> RecurrentLayout:
        """What a part keeps of a sequence."""
        inputs = 2 * self.d_state + self.part * (self.d_head + 1)
        return RecurrentLayout(self.taps, inputs, (self.part, self.d_state, self.d_head))


def mamba2(
    projected: Array,
    taps: Array,
    rate: Array,
    dt_bias: Array,
    skip: Array,
    conv_bias: Array | None,
    weight: Array | None,
    past: Array,
    attention_mask: Array,
    sequences: Array | None = None,
    slots: Array | None = None,
    *,
    groups: int,
    epsilon: float = 1e-5,
    norm_first: int = 0,
    dt_min: float = 0.0,
    dt_max: float = np.inf,
) -> list[Array]:
    """h = exp(rate dt) h + B (dt x)^T; y = norm((h^T C + skip x) silu(z)) weight. [y, present].

    Sequences begin at their first token or go on from the last one that `past` has.
    """
    inner = projected.shape[2] - taps.shape[1] - len(rate)
    sizes = Mamba2Sizes(
        heads=len(rate),
        groups=groups,
        d_head=inner // len(rate),
        d_state=(taps.shape[1] - inner) // (2 * groups),
        taps=len(taps),
    )
    bias = np.zeros(sizes.channels) if conv_bias is None else conv_bias.astype(np.float64)
    x, present = projected.astype(np.float64), past.astype(np.float64)
    y = np.zeros((*projected.shape[:2], inner))
    for at, slot, token, shown in tokens_of(projected, attention_mask, sequences, slots):
        z, channels, dt = np.split(x[at], [inner, inner + sizes.channels])
        steps = np.clip(np.logaddexp(0, dt + dt_bias), dt_min, dt_max)
        if not shown:
            channels, dt, steps = np.zeros_like(channels), np.full_like(dt, -np.inf), 0 * dt_bias
        for part in range(sizes.parts):
            own = _Part(sizes, part, present[slot, part], token)
            found = own.run(channels, dt, steps, taps, bias, rate, skip)
            y[at][own.columns] = found.ravel()
        gate = z / (1 + np.exp(-z))
        if weight is None:
            y[at] *= gate
        elif norm_first:
            y[at] = _norm(y[at], groups, epsilon) * weight * gate
        else:
            y[at] = _norm(y[at] * gate, groups, epsilon) * weight
    return [y, present]


class _Part:
    """Some heads of a group at a token."""

    def __init__(self, sizes: Mamba2Sizes, number: int, state: Array, token: int) -> None:
        self._sizes, self._state, self._token = sizes, state, token
        self._heads = np.arange(sizes.part) + number * sizes.part
        columns = np.arange(sizes.part * sizes.d_head) + number * sizes.part * sizes.d_head
        self.columns = columns
        b = np.arange(sizes.d_state) + sizes.inner
        b += int(self._heads[0]) // (sizes.heads // sizes.groups) * sizes.d_state
        self._channels = np.concatenate([b, b + sizes.groups * sizes.d_state, columns])

    def run(
        self,
        channels: Array,
        dt: Array,
        steps: Array,
        taps: Array,
        bias: Array,
        rate: Array,
        skip: Array,
    ) -> Array:
        """o ``[heads, d_head]`` of the token; changes the state."""
        sizes, chosen, layout = self._sizes, self._channels, self._sizes.layout
        layout.keep(self._state, self._token, np.concatenate([channels[chosen], dt[self._heads]]))
        rows = layout.last_rows(self._state, self._token)[:, : len(chosen)]
        mixed = (rows * taps[:, chosen]).sum(axis=0) + bias[chosen]
        mixed = mixed / (1 + np.exp(-mixed))
        b, c, x = np.split(mixed, [sizes.d_state, 2 * sizes.d_state])
        x = x.reshape(sizes.part, sizes.d_head)
        found = np.empty_like(x)
        for n, head in enumerate(self._heads):
            step = steps[head]
            h = np.exp(rate[head] * step) * layout.before(self._state, self._token, n)
            h = h + np.outer(b, step * x[n])
            layout.after(self._state, self._token, n, h)
            found[n] = h.T @ c + skip[head] * x[n]
        return found


def _norm(x: Array, groups: int, epsilon: float) -> Array:
    parts = x.reshape(groups, -1)
    normed: Array = parts / np.sqrt((parts * parts).mean(axis=1, keepdims=True) + epsilon)
    return normed.ravel()
