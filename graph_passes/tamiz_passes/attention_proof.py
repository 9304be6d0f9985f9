"""Proves on sample inputs that a region of the graph computes what tamiz.Attention computes.

Three questions, so that a refusal can say which one fails: is the mask the causal one of
attention_mask, perhaps with a window of the last keys, are the rotary tables those of fixed
frequencies, and does the whole region give the op's results (heads, groups, scale, partial
rotation, caches).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tamiz.api import rotary_frequencies
from tamiz_passes.attention_cases import CASES, COUNTED, GIVEN, case_of, has_hole, visible
from tamiz_passes.attention_region import Factor, Mask, Region, width
from tamiz_passes.probe import POSITION_INPUT, Case, Probe, form, integers_behind
from tamiz_passes.rotation import angles_of
from tamiz_passes.slopes import head_slopes
from tamiz_passes.values import Refusal, constant, operands, producer

#: Scores are masked by anything below this (exporters use −inf or float32's lowest).
_MASKED = -1e4
#: Longest context tried in search of a sliding window.
_LONGEST = 1 << 15
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Parameters:
    """Attributes of tamiz.Attention and its frequencies; see the op's declaration.

    Attributes:
        slopes: Of each query head by the distance; None for none.
        chosen_frequency: Frequencies that each run chooses (longrope); None where they are
            constant.
        counted: Whether the graph counts positions itself, whatever position_ids says.
    """

    num_heads: int
    kv_heads: int
    scale: float
    rotary_scale: float
    inverse_frequency: np.ndarray | None
    window: int = 0
    softcap: float = 0.0
    slopes: np.ndarray | None = None
    chosen_frequency: ir.Value | None = None
    counted: bool = False

    def attributes(self) -> dict[str, int | float]:
        """The attributes of the op that differ from its defaults."""
        found: dict[str, int | float] = {"num_heads": self.num_heads, "kv_heads": self.kv_heads}
        if self.scale:
            found["scale"] = self.scale
        if self.softcap:
            found["softcap"] = self.softcap
        if self.rotary_scale != 1.0:
            found["rotary_scale"] = self.rotary_scale
        if self.window:
            found |= {"window": self.window, "sinks": 0}
        return found


def prove(
    model: ir.Model, region: Region, proved: dict[tuple[Hashable, ...], Parameters]
) -> Parameters:
    """Finds the parameters with which tamiz.Attention computes `region`.

    Args:
        model: The model.
        region: A part of its graph.
        proved: What was found for regions of other layers; this one's is added.

    Raises:
        Refusal: If there are none.
    """
    key = _form(region)
    if key not in proved:
        kind = Proof
        if region.fused is not None:
            from tamiz_passes.fused_proof import FusedProof as kind
        proved[key] = kind(model, region).parameters()
    return proved[key]


def _form(region: Region) -> tuple[Hashable, ...]:
    """Regions of equal form compute the same."""
    read = region.results
    read += [v for r in region.rotations for v in (r.cos, r.sin)]
    factors = [*region.factors, *(region.cap or [])]
    read += [mask.value for mask in region.masks] + [value for value, _ in factors]
    given = [*region.sources, *region.pasts]
    if region.sinks is not None and region.sinks.value is not None:
        given.append(region.sinks.value)
    if region.query_weight is not None:
        given.append(region.query_weight)
    kinds = [(mask.additive, mask.keeps) for mask in region.masks]
    exponents = [
        None if f is None else tuple(e for _, e in f) for f in (region.factors, region.cap)
    ]
    return (tuple(kinds), *exponents, *form(read, given))


def _chosen(angles: list[ir.Value]) -> ir.Value | None:
    """The frequencies of all angles where a run chooses them; None where they are constant."""
    found = set[ir.Value]()
    for angle in angles:
        joined = producer(angle, "Concat")
        product = producer(operands(joined)[0] if joined is not None else angle, "Mul")
        for factor in operands(product) if product is not None else ():
            if producer(factor, "Where") is not None:
                found.add(factor)
    return found.pop() if len(found) == 1 else None


class Proof:
    """The parameters of a region."""

    def __init__(self, model: ir.Model, region: Region) -> None:
        self.region = region
        self.heads, self.kv_heads, self.head_size = _head_counts(region)
        self.sinks = None if region.sinks is None else region.sinks.of_heads(self.heads)
        weight = region.query_weight
        self.weight = None if weight is None else constant(weight)
        self.results = region.results
        self.tables = [v for r in region.rotations if not r.fused for v in (r.cos, r.sin)]
        self.angles = angles_of(self.tables)
        self.chosen = _chosen(self.angles)
        watched = [
            *([self.chosen] if self.chosen is not None else []),
            *(mask.value for mask in region.masks),
            *(value for value, _ in (*region.factors, *(region.cap or []))),
            *self.tables,
            *self.angles,
        ]
        outputs = list(dict.fromkeys([*self.results, *watched]))
        self.borders = [*region.sources, *region.pasts]
        self.probe = Probe(model, outputs, self.borders)
        self.counts = all(value.name != POSITION_INPUT for value in self.probe.inputs)

    def parameters(self) -> Parameters:
        """The parameters with which tamiz.Attention computes the region.

        Raises:
            Refusal: There are none.
        """
        window = self.window()
        frequency, factor = self.rotary()
        cap = self.softcap()
        scale = self.scale(cap or 1.0)
        counted = self.counts and frequency is not None
        slopes = head_slopes(self.bias, self.heads)
        found = Parameters(
            self.heads,
            self.kv_heads,
            scale,
            factor,
            frequency,
            window,
            cap,
            slopes,
            self.chosen,
            counted,
        )
        for case in CASES:
            self.check_results(found, case.counted() if self.counts else case)
        return found

    def run(
        self,
        outputs: list[ir.Value],
        case: Case,
        draw: Callable[[tuple[int, ...]], np.ndarray] = lambda shape: np.zeros(shape, np.float32),
    ) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
        """Runs on drawn q, k, v, past key and value; returns the results and these inputs."""
        region, tokens = self.region, (case.batch, case.length)
        held = case.past if region.k is not None else case.mask.shape[1]
        counts = [self.heads, *[self.kv_heads] * len(region.sources[1:])]
        given = {
            value: draw((*tokens, count * self.head_size))
            for value, count in zip(region.sources, counts, strict=True)
        }
        for past in region.pasts:
            given[past] = draw((case.batch, self.kv_heads, held, self.head_size))
        values = None if region.values is None else region.values.past
        ports = (region.q, region.k, region.v, region.keys.past, values)
        inputs = [None if value is None else given[value] for value in ports]
        for value in region.sources:
            if value.shape is not None and len(value.shape) == 4:
                given[value] = given[value].reshape(*tokens, -1, self.head_size)
        return self.probe.run(outputs, case, given), inputs

    def window(self) -> int:
        """The last keys that a query sees, itself included; 0 where it sees all before it.

        Compares what the masks keep with `visible`, for queries that see anything at all.
        """
        masks = self.region.masks
        if not masks:
            raise Refusal("the scores have no mask, expected the causal one")
        longest = longest_window(integers_behind([mask.value for mask in masks], self.borders))
        last = case_of([[1] * longest], 1)
        kept = self.kept(last)
        seen = int(kept.sum(-1).max())
        window = 0 if seen == longest else seen
        padded = case_of([[1] * (longest + 2), [0, *[1] * (longest + 1)]], 3)
        for case in (*CASES, last, padded):
            kept, expected = self.kept(case), visible(case, window)[:, None]
            if not ((kept == expected) | ~expected.any(-1, keepdims=True)).all():
                raise Refusal(
                    "the mask is not the causal mask of attention_mask"
                    + (f" with a window: of {longest} keys a query sees {seen}" if window else "")
                )
        return window

    def kept(self, case: Case) -> np.ndarray:
        """Which scores all masks keep, ``[1 or B, heads, 1 or S, P + S]``."""
        masks = self.region.masks
        arrays, _ = self.run([mask.value for mask in masks], case)
        kept = np.ones((1, 1, 1, case.mask.shape[1]), bool)
        for mask, array in zip(masks, arrays, strict=True):
            kept = kept & _kept(mask, array, case)
        return kept

    def bias(self, case: Case) -> np.ndarray:
        """What the masks add to the scores that they keep, ``[1 or B, 1 or H, 1 or S, P + S]``."""
        masks = [mask for mask in self.region.masks if mask.additive]
        arrays, _ = self.run([mask.value for mask in masks], case)
        added = np.zeros((1, 1, 1, case.mask.shape[1]), np.float32)
        for mask, array in zip(masks, arrays, strict=True):
            kept = _kept(mask, array, case)
            own = np.where(kept, array.reshape(kept.shape), 0)
            if kept.shape[1] * self.kv_heads == self.heads:  # of heads that share a head of keys
                own = np.tile(own, (1, self.kv_heads, 1, 1))
            elif kept.shape[1] not in (1, self.heads):
                raise Refusal(f"a mask is of {kept.shape[1]} heads, expected 1 or {self.heads}")
            added = added + own
        return added

    def rotary(self) -> tuple[np.ndarray | None, float]:
        """Frequencies ``[R/2]``, None without rotary embedding, and the factor on cos and sin."""
        rotations = self.region.rotations
        if not rotations:
            return None, 1.0
        if not any(rotation.fused for rotation in rotations):
            return self.computed_rotary()
        cos, sin = constant(rotations[0].cos), constant(rotations[0].sin)
        if cos is None or sin is None:
            raise Refusal("its rotary tables are computed, expected constants")
        if any((r.cos, r.sin) != (rotations[0].cos, rotations[0].sin) for r in rotations):
            raise Refusal("query and key are rotated by different tables")
        try:
            return rotary_frequencies(cos, sin)
        except ValueError as error:
            raise Refusal(str(error)) from error

    def computed_rotary(self) -> tuple[np.ndarray, float]:
        """The same of tables that the graph computes."""
        frequency, factor = np.zeros(0, np.float32), 1.0
        for case in COUNTED if self.counts else GIVEN:
            arrays, _ = self.run([*self.tables, *self.angles], case)
            arrays = [array.reshape(case.length, -1) for array in arrays]
            tables, angles = arrays[: len(self.tables)], arrays[len(self.tables) :]
            copies = 1 if self.region.rotations[0].halved else 2
            half = tables[0].shape[1] // copies
            if self.chosen is not None:
                frequency, factor = self.run([self.chosen], case)[0][0], float(tables[0][0, 0])
            elif not frequency.size:
                frequency, factor = angles[0][1, :half].copy(), float(tables[0][0, 0])
            angle = case.positions[0, :, None].astype(np.float32) * frequency
            if not all(np.allclose(a[:, :half], angle, rtol=1e-6, atol=0) for a in angles):
                raise Refusal(
                    "the rotary angles are not positions × constant frequencies (they follow "
                    "another count of positions, or change with it)"
                )
            expected = [f(np.tile(angle, copies)) * factor for f in (np.cos, np.sin)] * 2
            for found, wanted in zip(tables, expected, strict=False):
                if found.shape != wanted.shape or not np.allclose(found, wanted, atol=1e-5):
                    raise Refusal(
                        "the rotary tables are not cos and sin of the angles, repeated over both "
                        "halves"
                    )
        return frequency, factor

    def scale(self, cap: float) -> float:
        """The factor on the scores, where they are divided by `cap`; 0 for the op's 1/sqrt(D)."""
        return self.usual_scale(cap * self.product(self.region.factors))

    def usual_scale(self, scale: float) -> float:
        """A factor on the scores as the op takes it."""
        return 0.0 if math.isclose(scale, self.head_size**-0.5, rel_tol=1e-6) else scale

    def softcap(self) -> float:
        """c of the soft cap c · tanh(scores / c); 0 without one."""
        if self.region.cap is None:
            return 0.0
        cap = self.product(self.region.cap)
        if not (math.isfinite(cap) and cap > 0):
            raise Refusal(f"the soft cap of the scores is {cap:g}, expected a positive number")
        return cap

    def product(self, factors: list[Factor]) -> float:
        """The product of scalars with their exponents."""
        result = 1.0
        if factors:
            arrays, _ = self.run([value for value, _ in factors], CASES[0])
            for (_, exponent), array in zip(factors, arrays, strict=True):
                result *= float(array.reshape(())) ** exponent
        return result

    def check_results(self, parameters: Parameters, case: Case) -> None:
        """Compares the region with the op's reference on random inputs, of a size to be capped.

        A window of the op counts visible keys, that of a graph columns. Both are the same unless
        padding lies between tokens, as it does in no text that is padded at its beginning.
        """
        from tamiz_ops import reference

        random = np.random.default_rng(0)
        size = np.float32(max(1.0, parameters.softcap**0.5))
        found, inputs = self.run(
            self.results, case, lambda shape: size * random.standard_normal(shape, np.float32)
        )
        frequency = parameters.inverse_frequency
        if self.chosen is not None:
            frequency = self.run([self.chosen], case)[0][0]
        given = [*inputs, case.mask, case.positions, frequency]
        expected = reference.run(
            "Attention",
            [*given, *[None] * 7, self.sinks, self.weight, parameters.slopes],
            **parameters.attributes(),
        )
        sees = visible(case, parameters.window).any(-1)
        if parameters.window or parameters.slopes is not None:
            sees &= ~has_hole(case.mask)[:, None]
        found[0], expected[0] = found[0][sees], expected[0][sees]
        names = ("output", "present key", "present value")
        for what, a, b in zip(names, found, expected, strict=False):
            error = np.abs(a - b).max() / np.abs(b).max() if a.shape == b.shape else math.inf
            if not error <= _TOLERANCE:
                raise Refusal(
                    f"the {what} is not what tamiz.Attention computes (relative error {error:.1e})"
                )


def longest_window(numbers: set[int]) -> int:
    """Keys of a context that shows whether one of these numbers is a sliding window.

    Raises:
        Refusal: It is too long.
    """
    longest = max((n for n in numbers if n < 1 << 30), default=0) + 2
    if longest > _LONGEST:
        raise Refusal(f"the constant {longest - 2} may be a sliding window too long to test")
    return longest


def _head_counts(region: Region) -> tuple[int, int, int]:
    """Hq, Hkv and D, from the shape of the past and the widths of q, k and v."""
    assert region.keys.past.shape is not None
    kv_heads, head_size = region.keys.past.shape[1], region.keys.past.shape[3]
    if region.fused is not None and "num_heads" in region.fused.attributes:
        head_size = width(region.q) // region.fused.attributes["num_heads"].as_int()
    if not isinstance(kv_heads, int) or not isinstance(head_size, int):
        raise Refusal(f"{region.keys.past.name} does not say its heads and head size")
    heads, rest = divmod(width(region.q), head_size)
    key_width = kv_heads * head_size if region.k is None else width(region.k)
    if rest or heads % kv_heads or key_width != kv_heads * head_size:
        raise Refusal(
            f"query of width {width(region.q)} and key of width {key_width} do not share "
            f"{kv_heads} heads of size {head_size}"
        )
    return heads, kv_heads, head_size


def _kept(mask: Mask, array: np.ndarray, case: Case) -> np.ndarray:
    """Which scores a mask keeps, ``[1 or B, heads, 1 or S, P + S]``."""
    kept: np.ndarray = array > _MASKED if mask.additive else array if mask.keeps else ~array
    keys, length = case.mask.shape[1], case.length
    if kept.ndim < 2 or kept.shape[-1] != keys or (kept.shape[-2] > 1 and kept.shape[-2] % length):
        raise Refusal(f"the mask has shape {list(kept.shape)}, expected [B, heads, S, P + S]")
    rows = length if kept.shape[-2] > 1 else 1  # more are those of several heads
    return kept.reshape(kept.shape[0] if kept.ndim > 3 else 1, -1, rows, keys)
