"""The selective scan of Mamba's first version in NumPy and float64, and its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops.recurrent_layout import RecurrentLayout, tokens_of

Array = npt.NDArray[Any]

#: Channels of a part.
_CHANNELS = 64


@dataclass(frozen=True)
class ScanSizes:
    """Sizes of the selective state space of Mamba's first version.

    Attributes:
        channels: Channels, each with a state of its own.
        d_state: Length of B, of C and of such a state.
    """

    channels: int
    d_state: int

    @property
    def parts(self) -> int:
        """Parts of channels."""
        return -(-self.channels // _CHANNELS)

    @property
    def layout(self) -> RecurrentLayout:
        """What a part keeps of a sequence."""
        return RecurrentLayout(1, 2 * (_CHANNELS + self.d_state), (1, self.d_state * _CHANNELS))


def selective_scan(
    x: Array,
    dt: Array,
    b: Array,
    c: Array,
    z: Array,
    rate: Array,
    skip: Array,
    past: Array,
    attention_mask: Array,
    sequences: Array | None = None,
    slots: Array | None = None,
) -> list[Array]:
    """h = exp(rate s) h + b (s x), s = softplus(dt); y = (c h + skip x) silu(z). [y, present].

    Sequences begin at their first token or go on from the last one that `past` has.
    """
    d_state, channels = rate.shape
    sizes = ScanSizes(channels, d_state)
    layout, present = sizes.layout, past.astype(np.float64)
    gate = z.astype(np.float64)
    y = np.zeros_like(gate)
    for at, slot, token, shown in tokens_of(x, attention_mask, sequences, slots):
        step = np.logaddexp(0, dt[at].astype(np.float64)) if shown else np.zeros(channels)
        for part in range(sizes.parts):
            own = slice(part * _CHANNELS, (part + 1) * _CHANNELS)
            state, count = present[slot, part], len(skip[own])
            inputs = np.zeros(layout.inputs)
            inputs[_CHANNELS : _CHANNELS + count] = -1000
            if shown:
                inputs[:count], inputs[_CHANNELS : _CHANNELS + count] = x[at][own], dt[at][own]
                inputs[2 * _CHANNELS :] = np.concatenate([b[at], c[at]])
            layout.keep(state, token, inputs)
            kept = layout.before(state, token, 0).copy()
            h = np.exp(rate[:, own] * step[own]) * kept[: d_state * count].reshape(d_state, count)
            if shown:
                h = h + np.outer(b[at], step[own] * x[at][own])
                y[at][own] = c[at] @ h + skip[own] * x[at][own]
            kept[: d_state * count] = h.ravel()
            layout.after(state, token, 0, kept)
    return [y * gate / (1 + np.exp(-gate)), present]
