"""Colours of the map: steps of cividis, which readers with any colour vision tell apart.

Cividis (Nuñez et al. 2018) rises in lightness alone, so that the steps also keep their order in
grey. Every step comes with the colour of text on it, with a contrast of at least 4.5 : 1.
"""

from __future__ import annotations

from dataclasses import dataclass

_DARK, _LIGHT = "#111111", "#ffffff"


@dataclass(frozen=True)
class Step:
    """One step of a scale.

    Attributes:
        name: CSS class.
        colour: Of the cell.
        text: Of the text on it.
        label: Values that it stands for, as the legend shows them.
    """

    name: str
    colour: str
    text: str
    label: str


#: Bits per weight, up to a bound; few bits are dark.
_BITS = (
    (2.5, Step("b0", "#00204d", _LIGHT, "≤ 2.5")),
    (3.75, Step("b1", "#2f3f6e", _LIGHT, "≤ 3.75")),
    (5.0, Step("b2", "#575d6d", _LIGHT, "≤ 5")),
    (7.0, Step("b3", "#8a8779", _DARK, "≤ 7")),
    (9.0, Step("b4", "#b5a96c", _DARK, "≤ 9")),
    (17.0, Step("b5", "#dec958", _DARK, "≤ 17")),
    (float("inf"), Step("b6", "#fdea45", _DARK, "more")),
)
#: The 5 % quantile of the cosine, from a bound on; losses are dark.
_COSINES = (
    (0.999, Step("q4", "#fdea45", _DARK, "≥ 0.999")),
    (0.99, Step("q3", "#c9b862", _DARK, "≥ 0.99")),
    (0.97, Step("q2", "#8a8779", _DARK, "≥ 0.97")),
    (0.95, Step("q1", "#575d6d", _LIGHT, "≥ 0.95")),
    (float("-inf"), Step("q0", "#00204d", _LIGHT, "below")),
)
BIT_STEPS = tuple(step for _, step in _BITS)
COSINE_STEPS = tuple(step for _, step in _COSINES)


def bits_step(bits: float | None) -> str:
    """The class of a number of bits per weight; empty where there is none."""
    return "" if bits is None else next(step.name for bound, step in _BITS if bits <= bound)


def cosine_step(cosine: float | None) -> str:
    """The class of a cosine; empty where there is none."""
    return "" if cosine is None else next(step.name for bound, step in _COSINES if cosine >= bound)
