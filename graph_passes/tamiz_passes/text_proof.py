"""Proves on sample inputs that a region of the graph computes what tamiz.TextAttention computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tamiz_passes.attention_region import (
    Factor,
    Mask,
    heads_source,
    joined_output,
    scores_behind,
    skip_scaling,
    weighted_sum,
)
from tamiz_passes.distance_bias import distance_bias, longest
from tamiz_passes.fused_region import head_size_of, mask_inputs, projections, rotation_before
from tamiz_passes.probe import Case, Probe, form, integers_behind
from tamiz_passes.rotation import Rotation, angles_of, both_or_none, rotation_of
from tamiz_passes.values import Refusal, last_dim, operands

#: Scores are masked by anything below this.
_MASKED = -1e4
#: Longest text tried, and that of a mask whose constants say nothing of a reach.
_LONGEST, _SHORT = 1 << 13, 40
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class TextRegion:
    """Where the parts of the attention of an encoder are; see `attention_region.Region`."""

    output: ir.Value
    q: ir.Value
    k: ir.Value
    v: ir.Value
    head_size: int
    masks: list[Mask]
    factors: list[Factor]
    rotations: list[Rotation]
    fused: ir.Node | None = None


@dataclass(frozen=True)
class TextParameters:
    """Attributes of tamiz.TextAttention and its tables; see the op's declaration."""

    num_heads: int
    scale: float
    inverse_frequency: np.ndarray | None
    distance_bias: np.ndarray | None

    def attributes(self) -> dict[str, int | float]:
        """The attributes of the op that differ from its defaults."""
        found: dict[str, int | float] = {"num_heads": self.num_heads}
        if self.scale:
            found["scale"] = self.scale
        return found


def find_text_region(softmax: ir.Node) -> TextRegion:
    """Walks to the borders of the attention around `softmax`.

    Raises:
        Refusal: Where the structure is another one.
    """
    weighted = weighted_sum(softmax)
    masks: list[Mask] = []
    product, factors, cap = scores_behind(operands(softmax)[0], masks)
    if cap is not None:
        raise Refusal("scores have a soft cap, expected none in an encoder")
    query, key = (skip_scaling(value, factors) for value in operands(product))
    values = skip_scaling(operands(weighted)[1], [])
    rotations = both_or_none(rotation_of(query), rotation_of(key))
    sources = [r.source for r in rotations] or [query, key]
    output = joined_output(weighted.outputs[0])
    q, k, v = (heads_source(value) for value in (*sources, values))
    return TextRegion(output, q, k, v, _head_size(weighted), masks, factors, rotations)


def find_fused_text(node: ir.Node) -> TextRegion:
    """The region of an attention that another tool has fused into one op.

    Raises:
        Refusal: It has parts that tamiz.TextAttention has not, or keeps a past.
    """
    query, key, value = projections(node)
    rotations = both_or_none(rotation_before(query), rotation_before(key))
    if node.attributes.get_float("softcap", 0.0):
        raise Refusal("scores have a soft cap, expected none in an encoder")
    q, k = [each.source for each in rotations] or [query, key]
    return TextRegion(
        output=joined_output(node.outputs[0]),
        q=heads_source(q),
        k=heads_source(k),
        v=heads_source(value),
        head_size=head_size_of(node, query),
        masks=[],
        factors=[],
        rotations=rotations,
        fused=node,
    )


def _head_size(weighted: ir.Node) -> int:
    for value in (weighted.outputs[0], operands(weighted)[1]):
        if (size := last_dim(value)) is not None:
            return size
    raise Refusal("the head size is not known")


def prove_text(
    model: ir.Model, region: TextRegion, proved: dict[tuple[Hashable, ...], TextParameters]
) -> TextParameters:
    """Finds the parameters with which tamiz.TextAttention computes `region`.

    Args:
        model: The model.
        region: A part of its graph.
        proved: What was found for regions of other layers; this one's is added.

    Raises:
        Refusal: If there are none.
    """
    read = [region.output, *(value for r in region.rotations for value in (r.cos, r.sin))]
    read += [*(mask.value for mask in region.masks), *(value for value, _ in region.factors)]
    key = form(read, [region.q, region.k, region.v])
    if key not in proved:
        proved[key] = _Proof(model, region).parameters()
    return proved[key]


def _added(region: TextRegion) -> list[ir.Value]:
    """What a region adds to its scores."""
    if region.fused is None:
        return [mask.value for mask in region.masks if mask.additive]
    return [value for value in mask_inputs(region.fused) if value.dtype == ir.DataType.FLOAT]


def _case(mask: list[list[int]]) -> Case:
    array = np.array(mask, np.int64)
    return Case(array, np.tile(np.arange(array.shape[1]), (len(mask), 1)))


class _Proof:
    def __init__(self, model: ir.Model, region: TextRegion) -> None:
        self.region = region
        width = last_dim(region.q)
        if width is None or {last_dim(region.k), last_dim(region.v)} != {width}:
            raise Refusal("query, key and value are not of one known width")
        self.heads, rest = divmod(width, region.head_size)
        if rest:
            raise Refusal(f"width {width} is no multiple of the head size {region.head_size}")
        self.width = width
        self.angles = angles_of([v for r in region.rotations for v in (r.cos, r.sin)])
        self.added = _added(region)
        values = [mask.value for mask in region.masks] + [value for value, _ in region.factors]
        self.borders = [region.q, region.k, region.v]
        watched = dict.fromkeys([region.output, *values, *self.added, *self.angles])
        self.probe = Probe(model, list(watched), self.borders)

    def parameters(self) -> TextParameters:
        scale = self.scale()
        frequency = None
        if self.angles:
            (angle,) = self.run(self.angles[:1], _case([[1, 1]]))
            angle = angle.reshape(2, -1)
            frequency = angle[1, : (angle.shape[1] + 1) // 2].copy()
        if self.region.fused is None:
            self.check_mask()
        found = TextParameters(self.heads, scale, frequency, self.bias())
        if self.region.fused is not None:
            self.check(found, _case([[1] * self.reach(mask_inputs(self.region.fused))]))
        for mask in ([[1] * 5], [[1] * 9, [1] * 4 + [0] * 5], [[1] * 40, [1] * 17 + [0] * 23]):
            self.check(found, _case(mask))
        return found

    def run(
        self,
        outputs: list[ir.Value],
        case: Case,
        draw: Callable[[tuple[int, ...]], np.ndarray] = lambda shape: np.zeros(shape, np.float32),
    ) -> list[np.ndarray]:
        shape = (case.batch, case.length, self.width)
        return self.probe.run(outputs, case, {value: draw(shape) for value in self.borders})

    def scale(self) -> float:
        scale, node = 1.0, self.region.fused
        if node is not None:
            return node.attributes.get_float("scale", 0.0)
        if self.region.factors:
            arrays = self.run([value for value, _ in self.region.factors], _case([[1]]))
            for (_, exponent), array in zip(self.region.factors, arrays, strict=True):
                scale *= float(array.reshape(())) ** exponent
        usual = self.region.head_size**-0.5
        return 0.0 if math.isclose(scale, usual, rel_tol=1e-6) else scale

    def check_mask(self) -> None:
        """Refuses masks that hide more than padding."""
        masks = [mask.value for mask in self.region.masks]
        if not masks:
            raise Refusal("the scores have no mask, expected one by attention_mask")

        def shown(length: int) -> list[np.ndarray]:
            return self.run(masks, _case([[1] * length]))

        _, arrays = longest(shown, self.reach(masks))
        for mask, array in zip(self.region.masks, arrays, strict=True):
            if not (array > _MASKED if mask.additive else array == mask.keeps).all():
                raise Refusal(
                    "the mask hides other tokens than padding, such as those out of reach"
                )

    def bias(self) -> np.ndarray | None:
        """The table of what is added to scores where no token is hidden; None for zeros."""
        if not self.added:
            return None

        def added(length: int) -> np.ndarray:
            return np.asarray(sum(self.run(self.added, _case([[1] * length]))))

        _, found = longest(added, self.reach(self.added))
        if not found.any():
            return None
        return distance_bias(added, self.heads)

    def reach(self, masks: list[ir.Value]) -> int:
        """Length of a text in which masks show all tokens that they hide."""
        numbers = [n for n in integers_behind(masks, self.borders) if n < _LONGEST]
        return max(_SHORT, 3 + max(numbers, default=0))

    def check(self, parameters: TextParameters, case: Case) -> None:
        """Compares the region with the op's reference on random inputs."""
        from tamiz_ops import reference

        random = np.random.default_rng(0)
        inputs = [
            random.standard_normal((case.batch, case.length, self.width), np.float32)
            for _ in self.borders
        ]
        given = iter(inputs)
        (found,) = self.run([self.region.output], case, lambda shape: next(given))
        (expected,) = reference.run(
            "TextAttention",
            [*inputs, case.mask, None, parameters.inverse_frequency, parameters.distance_bias],
            **parameters.attributes(),
        )
        if found.shape != expected.shape:
            raise Refusal(f"the output has shape {list(found.shape)}")
        rows = case.mask != 0
        error = np.abs(found - expected)[rows].max() / np.abs(expected[rows]).max()
        if not error <= _TOLERANCE:
            raise Refusal(
                f"the output is not what tamiz.TextAttention computes (relative error {error:.1e})"
            )
