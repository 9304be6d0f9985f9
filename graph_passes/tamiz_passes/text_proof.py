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
    width,
)
from tamiz_passes.disentangled import (
    RelativeScores,
    column_table,
    gathers_scores,
    relative_scores,
)
from tamiz_passes.distance_bias import distance_bias, longest
from tamiz_passes.fused_region import head_size_of, mask_inputs, projections, rotation_before
from tamiz_passes.probe import MASK_INPUT, Case, Probe, form, integers_behind
from tamiz_passes.rotation import Rotation, angles_of, both_or_none, rotation_of
from tamiz_passes.text_tokens import check_tokens
from tamiz_passes.values import Refusal, constant, last_dim, operands, rank

#: Scores are masked by anything below this.
_MASKED = -1e4
#: Longest text tried, and that of a mask whose constants say nothing of a reach.
_LONGEST, _SHORT = 1 << 13, 40
_TOLERANCE = 1e-4
#: Texts that a proof compares, with padding.
_MASKS = ([[1] * 5], [[1] * 9, [1] * 4 + [0] * 5], [[1] * 40, [1] * 17 + [0] * 23])


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
    relative: tuple[RelativeScores, ...] = ()

    def table(self, of_keys: bool) -> ir.Value | None:
        """The table that queries, or keys, are multiplied with; None for none."""
        return next((each.table for each in self.relative if each.of_keys == of_keys), None)


@dataclass(frozen=True)
class Seen:
    """Which tokens of a text a query sees.

    Attributes:
        causal: Whether those before it only.
        reach: The distance of the farthest; 0: all.
    """

    causal: bool = False
    reach: int = 0

    def keys(self, length: int) -> np.ndarray:
        """Whether query i sees key j, ``[S, S]``."""
        distance = np.subtract.outer(np.arange(length), np.arange(length))
        near = np.abs(distance) <= (self.reach or length)
        return np.asarray(near & (distance >= 0) if self.causal else near)


@dataclass(frozen=True)
class TextParameters:
    """Attributes of tamiz.TextAttention and its tables; see the op's declaration.

    `masked`: whether attention_mask hides tokens.
    """

    masked: bool
    num_heads: int
    kv_heads: int
    scale: float
    inverse_frequency: np.ndarray | None
    distance_bias: np.ndarray | None
    buckets: np.ndarray | None
    seen: Seen

    def attributes(self) -> dict[str, int | float]:
        """The attributes of the op that differ from its defaults."""
        found: dict[str, int | float] = {"num_heads": self.num_heads}
        if self.kv_heads != self.num_heads:
            found["kv_heads"] = self.kv_heads
        if self.scale:
            found["scale"] = self.scale
        if self.seen.causal:
            found["causal"] = 1
        if self.seen.reach:
            found["reach"] = self.seen.reach
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
    relative = tuple(filter(None, map(relative_scores, (mask.value for mask in masks))))
    masks = [mask for mask in masks if relative_scores(mask.value) is None]
    if any(map(gathers_scores, (mask.value for mask in masks))):
        raise Refusal(
            "scores of positions (DeBERTa) are not gathered from constant tables; try the model's "
            "safetensors, which tamiz exports with such tables"
        )
    if len({each.of_keys for each in relative}) < len(relative):
        raise Refusal("found several scores of positions of a kind, expected one")
    values = skip_scaling(operands(weighted)[1], [])
    rotations = both_or_none(rotation_of(query), rotation_of(key))
    sources = [r.source for r in rotations] or [query, key]
    output = joined_output(weighted.outputs[0])
    q, k, v = (heads_source(value) for value in (*sources, values))
    size = _head_size(weighted)
    return TextRegion(output, q, k, v, size, masks, factors, rotations, relative=relative)


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
    tables = [each.table for each in region.relative]  # each layer has its own
    key = form(read, [region.q, region.k, region.v], tables)
    if key not in proved:
        proved[key] = _Proof(model, region).parameters()
    mask = next((v for v in model.graph.inputs if v.name == MASK_INPUT), None)
    check_tokens([region.q, region.k, region.v], mask if proved[key].masked else None)
    return proved[key]


def _added(region: TextRegion) -> list[ir.Value]:
    """What a region adds to its scores."""
    if region.fused is None:
        return [mask.value for mask in region.masks if mask.additive]
    return [value for value in mask_inputs(region.fused) if value.dtype == ir.DataType.FLOAT]


def _fixed(value: ir.Value, axis: int) -> int | None:
    """The size of an axis that the graph fixes."""
    size = None if value.shape is None else value.shape[axis]
    return size if isinstance(size, int) else None


def _case(mask: list[list[int]]) -> Case:
    array = np.array(mask, np.int64)
    return Case(array, np.tile(np.arange(array.shape[1]), (len(mask), 1)))


class _Proof:
    def __init__(self, model: ir.Model, region: TextRegion) -> None:
        self.region = region
        self.widths = [width(value) for value in (region.q, region.k, region.v)]
        counts = [divmod(each, region.head_size) for each in self.widths]
        (self.heads, _), (self.kv_heads, _) = counts[:2]
        if any(rest for _, rest in counts) or counts[1] != counts[2] or self.heads % self.kv_heads:
            raise Refusal(
                f"query, key and value of widths {self.widths} do not share heads of size"
                f" {region.head_size}"
            )
        self.angles = angles_of([v for r in region.rotations for v in (r.cos, r.sin)])
        self.added = _added(region)
        values = [mask.value for mask in region.masks] + [value for value, _ in region.factors]
        self.borders = [region.q, region.k, region.v]
        self.columns = [each.columns for each in region.relative]
        watched = dict.fromkeys([region.output, *values, *self.added, *self.angles, *self.columns])
        self.probe = Probe(model, list(watched), self.borders)
        self.masked = any(value.name == MASK_INPUT for value in self.probe.inputs)
        self.batch, self.length = 1, None if self.masked else _fixed(region.q, 1)
        if self.length is not None:
            self.batch = _fixed(region.q, 0) or 2

    def parameters(self) -> TextParameters:
        scale = self.scale()
        frequency = None
        if self.angles:
            (angle,) = self.run(self.angles[:1], self.text(2))
            angle = angle.reshape(-1, angle.shape[-1])
            frequency = angle[1, : (angle.shape[1] + 1) // 2].copy()
        seen = self.seen() if self.region.fused is None else Seen()
        bias, buckets = self.bias(), self.buckets()
        found = TextParameters(
            self.masked, self.heads, self.kv_heads, scale, frequency, bias, buckets, seen
        )
        if self.length is not None:
            self.check(found, self.text(self.length))
            return found
        if seen.reach:
            self.check(found, _case([[1] * (2 * seen.reach + 3)]))
        if self.region.fused is not None:
            self.check(found, _case([[1] * self.reach(mask_inputs(self.region.fused))]))
        for mask in _MASKS if self.masked else [[[1] * len(row) for row in m] for m in _MASKS]:
            self.check(found, _case(mask))
        return found

    def text(self, length: int) -> Case:
        """Texts of some tokens without padding, or of as many as the graph fixes."""
        return _case([[1] * (self.length or length)] * self.batch)

    def run(
        self,
        outputs: list[ir.Value],
        case: Case,
        draw: Callable[[tuple[int, ...]], np.ndarray] = lambda shape: np.zeros(shape, np.float32),
    ) -> list[np.ndarray]:
        given = {}
        for value, columns in zip(self.borders, self.widths, strict=True):
            drawn = draw((case.batch, case.length, columns))
            split = (*drawn.shape[:2], -1, self.region.head_size)
            given[value] = drawn.reshape(split) if rank(value) == 4 else drawn
        return self.probe.run(outputs, case, given)

    def scale(self) -> float:
        scale, node = 1.0, self.region.fused
        if node is not None:
            return node.attributes.get_float("scale", 0.0)
        if self.region.factors:
            arrays = self.run([value for value, _ in self.region.factors], self.text(1))
            for (_, exponent), array in zip(self.region.factors, arrays, strict=True):
                scale *= float(array.reshape(())) ** exponent
        usual = self.region.head_size**-0.5
        return 0.0 if math.isclose(scale, usual, rel_tol=1e-6) else scale

    def seen(self) -> Seen:
        """Which tokens a query sees.

        Raises:
            Refusal: The masks hide others than padding, later ones, and those out of reach.
        """
        masks = [mask.value for mask in self.region.masks]
        if not masks:
            return Seen()

        def shown(length: int) -> list[np.ndarray]:
            return self.run(masks, self.text(length))

        length, arrays = longest(shown, self.reach(masks))
        keys = np.ones((1, length, length), bool)
        for mask, array in zip(self.region.masks, arrays, strict=True):
            kept = array > _MASKED if mask.additive else array == mask.keeps
            rows = 1 if kept.ndim < 2 or kept.shape[-2] == 1 else length
            keys = keys & kept.reshape(-1, rows, length)  # more rows are those of several heads
        row, column = np.nonzero(keys[0])
        farthest = int(np.abs(row - column).max(initial=0))
        reach = farthest if farthest < length - 1 else 0
        found = Seen(not (column > row).any(), reach)
        if not (keys == found.keys(length)).all():
            raise Refusal(
                "the mask hides other tokens than padding, later ones and those out of reach"
            )
        return found

    def buckets(self) -> np.ndarray | None:
        """The columns of the tables of positions by distance; None without such tables."""
        if not self.columns:
            return None

        def columns(length: int) -> list[np.ndarray]:
            found = self.run(self.columns, self.text(length))
            return [
                array.swapaxes(-1, -2) if each.of_keys else array
                for array, each in zip(found, self.region.relative, strict=True)
            ]

        return column_table(columns)

    def bias(self) -> np.ndarray | None:
        """The table of what is added to scores where no token is hidden; None for zeros."""
        if not self.added:
            return None

        def added(length: int) -> np.ndarray:
            found = np.asarray(sum(self.run(self.added, self.text(length))))
            return np.where(found > _MASKED, found, 0)  # `seen` finds what is hidden

        _, found = longest(added, self.reach(self.added))
        if not found.any():
            return None
        return distance_bias(added, self.heads)

    def reach(self, masks: list[ir.Value]) -> int:
        """Length of a text in which masks show all tokens that they hide."""
        if self.length is not None:
            return self.length
        numbers = [n for n in integers_behind(masks, self.borders) if n < _LONGEST]
        return max(_SHORT, 3 + max(numbers, default=0))

    def check(self, parameters: TextParameters, case: Case) -> None:
        """Compares the region with the op's reference on random inputs."""
        from tamiz_ops import reference

        random = np.random.default_rng(0)
        inputs = [
            random.standard_normal((case.batch, case.length, columns), np.float32)
            for columns in self.widths
        ]
        given = iter(inputs)
        (found,) = self.run([self.region.output], case, lambda shape: next(given))
        (expected,) = reference.run(
            "TextAttention",
            [
                *(*inputs, case.mask if parameters.masked else None, None),
                *(parameters.inverse_frequency, parameters.distance_bias),
                *(constant(self.region.table(of_keys)) for of_keys in (False, True)),
                parameters.buckets,
            ],
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
