r"""Prediction of a ReLU's zeros from the signs of the gate (SparseInfer, arXiv 2411.12692).

    e_o = Σ_i sign(w_oi) q_i,    q the levels of x − μ in `planes` bits, by popcounts
    g_o ≈ a_o + b_o e_o + noise of σ_o,    least squares on the calibration text
    gate o is computed where (a_o + b_o e_o) / σ_o > t, and taken to be 0 elsewhere

SparseInfer compares the signs of x and one ratio of negative products for a whole layer. Here μ,
the mean input, is taken off first, and each gate has its own limit: what it is without x − μ, and
how much the signs say, differ from gate to gate. t is the largest number that finds the wanted
part of the open gates. Whatever is predicted to be open is computed exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

import tamiz_ops
from tamiz.api import (
    POLICY_ONLY,
    Access,
    Cost,
    Fit,
    FitError,
    GraphEditor,
    Part,
    Site,
    Statistics,
    TechniqueConfig,
    attribute_of,
    input_of,
)
from tamiz_ops.formats import GROUP, TILE
from tamiz_state_pack.chosen import RECORD_INPUTS, RELUS, choose_outputs, is_plain_int4

if TYPE_CHECKING:
    import onnx_ir as ir

Float = NDArray[np.float32]

#: Largest part of the gates that is computed where prediction pays: the signs are 0.22 of the bytes
#: of int4, and records with gaps between them take about 1.5 times as long as a stream.
PAYS = 0.4
#: Of the open gates, what is missed at strength 1.
_MISSED = 0.02
#: Distance of two levels, in root mean squares of x − μ: least squares for a normal variable.
STEPS = {1: 1.0, 2: 0.996, 3: 0.586, 4: 0.335}
#: Compute of a popcount of one plane, in int4 multiply-accumulates.
_COUNT = 0.06
_LEAST_SAMPLES = 64
#: Rows of the weight that are compared at a time.
_ROWS = 1024


class SignsConfig(TechniqueConfig):
    """How many open gates have to be found."""

    strength: float = Field(
        1.0,
        gt=0,
        description=f"Part of the open gates that may be missed, in units of {_MISSED}, used when "
        "`recall` is not set. By default the build raises it until `--max-dppl` is reached.",
    )
    recall: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Part of the open gates that prediction has to find on the calibration text. "
        "Unset: the build chooses it from `strength`.",
    )
    density: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Largest fraction of the gates that are computed. A site with more on the "
        f"calibration text is refused, by default {PAYS}.",
    )
    planes: int = Field(
        4,
        ge=1,
        le=4,
        description="Bits of an input that are compared; 1 is its sign.",
        json_schema_extra=POLICY_ONLY,
    )

    @property
    def wanted(self) -> float:
        """Part of the open gates that has to be found."""
        return max(0.5, 1 - _MISSED * self.strength) if self.recall is None else self.recall

    @property
    def most(self) -> float:
        """Largest fraction of the gates that are computed."""
        return PAYS if self.density is None else self.density


@dataclass(frozen=True)
class Levels:
    """How inputs become levels."""

    center: Float
    step: float
    planes: int

    @classmethod
    def of(cls, x: Float, planes: int) -> Levels:
        """Levels for inputs like the samples ``[S, K]``."""
        center = x.mean(axis=0, dtype=np.float64).astype(np.float32)
        spread = float(np.sqrt(np.square(x - center, dtype=np.float64).mean()))
        return cls(center, max(float(np.float32(STEPS[planes] * spread)), 1e-30), planes)

    def levels(self, x: Float) -> Float:
        """q of inputs ``[S, K]``: odd integers between ±(2^planes − 1)."""
        half = 2 ** (self.planes - 1)
        edges = np.arange(1 - half, half, dtype=np.float32) * np.float32(self.step)
        z = x - self.center
        q = np.full(z.shape, 1 - 2 * half, np.float32)
        for edge in edges:
            q += 2 * (z > edge)
        return q


class Gates(NamedTuple):
    """What is known of gates, ``[N]`` each: g ≈ mean + slope (e − center) + noise."""

    center: NDArray[np.float64]
    mean: NDArray[np.float64]
    slope: NDArray[np.float64]
    noise: NDArray[np.float64]

    @classmethod
    def of(cls, e: Float, g: Float) -> Gates:
        """Least squares over samples ``[S, N]``."""
        center, mean = e.mean(axis=0, dtype=np.float64), g.mean(axis=0, dtype=np.float64)
        along, across = e - center, g - mean
        slope = (along * across).sum(axis=0) / np.maximum(np.square(along).sum(axis=0), 1e-30)
        slope = np.maximum(slope, 0)  # a gate that the signs say nothing of has its mean
        noise = np.sqrt(np.square(across - slope * along).mean(axis=0))
        return cls(center, mean, slope, np.maximum(noise, 1e-30))

    def scores(self, e: Float) -> NDArray[np.float64]:
        """(a + b e) / σ of samples ``[S, N]``."""
        scores: NDArray[np.float64] = (self.mean + self.slope * (e - self.center)) / self.noise
        return scores

    def limits(self, least: float, most: int) -> NDArray[np.int32]:
        """Largest distances ½ (most − e) of gates whose score is at least `least`."""
        wanted = least * self.noise - self.mean
        steep = self.slope > 0
        e = self.center + np.divide(wanted, self.slope, out=np.zeros_like(wanted), where=steep)
        always = np.where(wanted <= 0, most, -1)
        distance = np.where(steep, np.floor((most - e) / 2), always)
        return np.clip(distance, -1, most).astype(np.int32)


def fit(site: Site, weight: Float, statistics: Statistics | None, config: SignsConfig) -> Fit:
    """Fits limits to four fifths of the samples, and chooses t and measures on the last fifth.

    Args:
        site: The product whose outputs a ReLU takes.
        weight: float32 ``[N, K]``.
        statistics: Of the site's input.
        config: How many open gates have to be found.

    Returns:
        ``signs`` uint8 ``[ceil(N / 16), ceil(K / 32) · 64]``, ``limits`` int32 ``[N]``, ``center``
        float32 ``[K]``; metrics ``recall`` (part of the open gates that is predicted), ``density``
        (part of the gates that is open), ``predicted`` (part that is computed), and
        ``output_rel_l2`` = ‖relu(g) that is missed‖ / ‖relu(g)‖ on the last fifth of the samples.

    Raises:
        FitError: There are too few samples, no gate is open, or so many are predicted to be open
            that skipping would not pay.
    """
    samples = 0 if statistics is None else len(statistics.samples)
    if statistics is None or samples < _LEAST_SAMPLES:
        raise FitError(
            f"its limits are fitted to calibration inputs, expected at least {_LEAST_SAMPLES},"
            f" found {samples}"
        )
    padded = -(-site.in_features // RECORD_INPUTS) * RECORD_INPUTS
    if padded != site.in_features and config.density is None:
        raise FitError(f"its inputs are no multiple of {RECORD_INPUTS}, which records are")
    x, seen = statistics.samples, samples - -(-samples // 5)
    inputs = Levels.of(x[:seen], config.planes)
    q, most = inputs.levels(x), (2**config.planes - 1) * site.in_features
    gates, scores, values = _compare(weight, x, q, seen)
    is_open = values > 0
    if not is_open.any():
        raise FitError("none of its outputs is positive on the calibration text")
    least = float(np.quantile(scores[is_open], 1 - config.wanted))
    limits = gates.limits(least, most)
    predicted = scores >= least
    metrics = _metrics(predicted, is_open, values)
    if not np.isfinite([*metrics.values(), *inputs.center]).all():
        raise FitError("its products on the calibration text are not finite")
    if metrics["predicted"] > config.most:
        raise FitError(
            f"{metrics['predicted']:.2f} of its outputs would be computed to find"
            f" {metrics['recall']:.2f} of the positive ones, more than density {config.most:g}"
            + (": skipping would not pay" if config.density is None else "")
        )
    signs = tamiz_ops.pack_sign_words(np.where(weight > 0, np.int8(1), np.int8(-1)))
    n, k = weight.shape
    tensors: dict[str, NDArray[Any]] = {"signs": signs, "limits": limits, "center": inputs.center}
    stored = sum(tensor.nbytes for tensor in tensors.values())
    attributes = {"n": n, "k": k, "planes": config.planes, "step": inputs.step}
    return Fit(tensors, attributes, metrics, bits_per_weight=8 * stored / (n * k))


def _compare(
    weight: Float, x: Float, q: Float, seen: int
) -> tuple[Gates, NDArray[np.float64], Float]:
    """The gates, fitted to the first samples, and scores and values of the others ``[S, N]``."""
    parts = []
    for first in range(0, len(weight), _ROWS):
        rows = np.ascontiguousarray(weight[first : first + _ROWS], np.float32)
        g, e = x @ rows.T, q @ np.where(rows > 0, np.float32(1), np.float32(-1)).T
        if not np.isfinite(g).all():
            raise FitError("its products on the calibration text are not finite")
        gates = Gates.of(e[:seen], g[:seen])
        parts.append((gates, gates.scores(e[seen:]), g[seen:]))
    every, scores, values = zip(*parts, strict=True)
    columns = map(np.concatenate, zip(*every, strict=True))
    return Gates(*columns), np.concatenate(scores, axis=1), np.concatenate(values, axis=1)


def _metrics(
    predicted: NDArray[np.bool_], is_open: NDArray[np.bool_], values: Float
) -> dict[str, float]:
    energy = np.square(values, dtype=np.float64) * is_open
    lost = float((energy * ~predicted).sum() / max(float(energy.sum()), 1e-300))
    return {
        "recall": float((predicted & is_open).sum() / is_open.sum()),
        "density": float(is_open.mean()),
        "predicted": float(predicted.mean()),
        "output_rel_l2": float(np.sqrt(lost)),
        "exact": 0.0,
    }


def effect(site: Site, config: SignsConfig, cost: Cost, keys: int) -> Cost:
    """A step reads the signs, and at most that part of the weights."""
    n, k = site.out_features, site.in_features
    signs = -(-n // TILE) * TILE * (-(-k // GROUP)) * GROUP // 8
    first = Part(signs, round(_COUNT * config.planes * n * k))
    return replace(
        cost,
        stored=cost.stored + signs + 4 * (n + k),
        read=round(config.most * cost.read) + signs,
        work=round(config.most * cost.work),
        exact=False,
        parts={Access.INDEX: first, Access.RECORDS: Part(round(config.most * cost.read))},
    )


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Puts SignMask before the product, whose other outputs are left out.

    Raises:
        FitError: The product is none of int4 alone, or no ReLU takes its outputs.
    """
    graph = GraphEditor(model)
    node = graph.op(site, "BlockMatMul")
    if not is_plain_int4(node) or input_of(node, "bias") is not None:
        raise FitError(
            "its product is not one of int4 with inputs of 16 bits, no other mask and no bias; "
            "try --block-quant-bits 4"
        )
    _check_relu(node.outputs[0])
    mask = graph.value(f"{site.id}.signs.mask", "UINT8")
    inputs = {"x": input_of(node, "x")}
    inputs |= {
        role: graph.constant(f"{site.id}.signs.{role}", fit.tensors[role]) for role in fit.tensors
    }
    signs = graph.insert(node, f"{site.id}.signs", "SignMask", inputs, fit.attributes, [mask])
    return [signs, choose_outputs(graph, node, mask)]


def _check_relu(value: ir.Value) -> None:
    """Raises FitError where something else than a ReLU takes a value."""
    users = value.consumers()
    user = users[0] if len(users) == 1 and not value.is_graph_output() else None
    if user is None or user.op_type != "SwiGLU" or input_of(user, "gate") is not value:
        raise FitError("its outputs are not those that a tamiz.SwiGLU takes as its gate alone")
    if attribute_of(user, "activation") not in RELUS:
        raise FitError(
            f"its activation is {attribute_of(user, 'activation')}, expected relu or relu2: others "
            "are not 0 where their input is negative"
        )
