r"""Technique channel-scale (AWQ, Lin et al. 2023, arXiv 2306.00978).

    y = W x = (W diag(s)) (x / s),    Ŵ = int4(W diag(s)) diag(1/s),    s_k = m_k^(α/2)

m is the imatrix, the mean of x². s is scaled to a geometric mean of 1. Channels that carry much of
the input are rounded in finer steps at the cost of the others of their group.
"""

from typing import Any

import numpy as np
from pydantic import Field

import tamiz_ops
from tamiz import api
from tamiz_ops.formats import int_format


class ChannelScaleConfig(api.TechniqueConfig):
    """How strongly an input channel's size counts."""

    alpha: float | None = Field(
        None, ge=0, le=1, description="Exponent α; 0 is plain int4. By default the best of nine."
    )


def fit(site: api.Site, weight: Any, statistics: Any, config: ChannelScaleConfig) -> api.Fit:
    """Scales, rounds and packs one weight, float32 ``[N, K]``; the samples choose α."""
    if statistics is None:
        raise api.FitError("its scales are made from a calibration, see 'tamiz calibrate'")
    n, k = weight.shape
    alphas = np.arange(9) / 8 if config.alpha is None else [config.alpha]
    tried = [_pack(weight, _scales(statistics.imatrix, alpha)) for alpha in alphas]
    lost = [statistics.samples @ (weight - _unpack(*each, n)).T for each in tried]
    best = int(np.argmin([np.linalg.norm(error) for error in lost]))
    packed, inverse = tried[best]
    return api.Fit(
        tensors={"weight": packed, "inverse": inverse},
        attributes={"bits": 4, "n": n, "k": k},
        metrics={"channel_scale.alpha": float(alphas[best])},
        bits_per_weight=8 * (packed.nbytes + inverse.nbytes) / (n * k),
    )


def dequantize(site: api.Site, fit: api.Fit) -> Any:
    """Ŵ, float32 ``[N, K]``."""
    return _unpack(fit.tensors["weight"], fit.tensors["inverse"], site.out_features)


def cost(site: api.Site, config: ChannelScaleConfig) -> api.Cost:
    """Exact: the packed weight and one number for each input."""
    stored = int_format(4).bytes(site.out_features, site.in_features) + 4 * site.in_features
    return api.Cost(stored, stored)


def rewrite(site: api.Site, fit: api.Fit, model: Any) -> list[Any]:
    """Replaces W x by an ONNX Mul, x / s, and tamiz's BlockMatMul."""
    graph = api.GraphEditor(model)
    linear = graph.linear(site)
    packed = {role: graph.constant(f"{site.id}.{role}", fit.tensors[role]) for role in fit.tensors}
    name, scaled = f"{site.node}.scale", graph.value(f"{site.node}.scaled", linear.input)
    operands = [linear.input, packed["inverse"]]
    mul = graph.insert(linear.node, name, "Mul", operands, {}, [scaled], domain="")
    inputs = {"x": scaled, "weight": packed["weight"], "bias": linear.bias}
    return [mul, graph.replace(linear, "BlockMatMul", inputs, fit.attributes)]


def _scales(imatrix: Any, alpha: float) -> Any:
    """s ``[K]``; a channel that is always 0 counts as the smallest of the others."""
    rms = np.sqrt(imatrix.astype(np.float64))
    logs = alpha * np.log(np.maximum(rms, rms[rms > 0].min(initial=1.0)))
    return np.exp(logs - logs.mean()).astype(np.float32)


def _pack(weight: Any, s: Any) -> tuple[Any, Any]:
    try:
        packed = tamiz_ops.pack_int4(*tamiz_ops.quantize_groups(weight * s, 4))
    except ValueError as error:
        raise api.FitError(str(error)) from error
    return packed, (1 / s).astype(np.float32)


def _unpack(packed: Any, inverse: Any, n: int) -> Any:
    return tamiz_ops.dequantize(packed, 4, n, len(inverse)) * inverse


CHANNEL_SCALE = api.Technique.of(
    api.Identity(
        name="channel-scale",
        summary="int4 weights whose input channels are scaled by their size before rounding (AWQ).",
        config=ChannelScaleConfig,
    ),
    api.Where(site_kinds={api.SiteKind.LINEAR}),
    api.Claims(claims=(api.Claim(api.Resource.WEIGHTS),)),
    api.Offline(fit=fit, dequantize=dequantize),
    api.Graph(rewrite=rewrite, ops=("BlockMatMul",)),
    api.Planning(cost=cost),
)
tamiz_techniques = api.offer(CHANNEL_SCALE)
