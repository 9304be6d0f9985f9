"""Measures what the errors that a technique with a dial makes at a site do to the whole model.

    s_g = (KL_g − KL_rest) / Σ_{sites of g} output_rel_l2²

KL_g is the divergence from dense (nats a token) of a candidate in which the technique acts at the
sites of group g only, KL_rest that of one in which it acts nowhere; output_rel_l2 the error that a
fit makes at its site's output. A group is what reads one input in some neighbouring layers; layers
at the ends of the model, which are unlike all others, are alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tamiz.selection import Slot
from tamiz.site import Site
from tamiz.whole_model import Trials, lossy

#: First and last layers that are groups of their own, and groups of the layers between.
_FIRST, _LAST, _BETWEEN = 2, 1, 4
#: A smaller divergence (nats a token) is not told from none.
_LEAST = 1e-5
#: Tensors that read the input of another.
_READS_WITH = {"attn_k": "attn_q", "attn_v": "attn_q", "ffn_up": "ffn_gate"}


def measure(slots: Mapping[int, Slot], rest: Sequence[Slot], trials: Trials) -> dict[int, float]:
    """The sensitivity of every slot: nats a token for each unit of squared relative error.

    Args:
        slots: Slots of techniques with a dial, fitted, by index.
        rest: All slots, empty at these indices.
        trials: Measures candidates; each is told with the ``group`` that it is of.
    """
    if not slots:
        return {}
    layers = 1 + max(slot.site_plan.site.layer or 0 for slot in slots.values())
    groups: dict[str, list[int]] = {}
    for index, slot in slots.items():
        groups.setdefault(_group(slot.site_plan.site, layers), []).append(index)
    before = trials.divergence(rest, group="none") if lossy(rest) else 0.0
    found = {}
    for name, members in groups.items():
        candidate = list(rest)
        for index in members:
            candidate[index] = slots[index]
        divergence = trials.divergence(candidate, group=name) - before
        error = sum(_error(slots[index]) ** 2 for index in members)
        found.update(dict.fromkeys(members, max(divergence, _LEAST) / max(error, 1e-12)))
    return found


def _group(site: Site, layers: int) -> str:
    """Name of the group of a site: ``ffn_gate of layers 7 to 11``."""
    tensor = site.tensor or site.kind.value
    return f"{_READS_WITH.get(tensor, tensor)} {_depth(site.layer, layers)}"


def _depth(layer: int | None, layers: int) -> str:
    between = layers - _FIRST - _LAST
    if layer is None:
        return "outside of layers"
    if between <= _BETWEEN or not _FIRST <= layer < layers - _LAST:
        return f"of layer {layer}"
    part = (layer - _FIRST) * _BETWEEN // between
    first, end = (_FIRST - (-p * between // _BETWEEN) for p in (part, part + 1))
    return f"of layers {first} to {end - 1}"


def _error(slot: Slot) -> float:
    assert slot.accepted is not None
    return slot.accepted.metrics["output_rel_l2"]
