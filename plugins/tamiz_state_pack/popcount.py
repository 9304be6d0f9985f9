r"""Feed-forward products by popcounts: activations become levels, as the weights already are.

    x_i ≈ γ_g a_i,    a_i = sign(x_i) where |x_i| > eps · mean|x|, else 0
    Σ_i a_i t_i = pos·pos + neg·neg − pos·neg − neg·pos,    by popcounts

in every group g of 32 inputs, γ_g the mean of |x_i| where a_i ≠ 0: least squares. `binary` is
eps = 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tamiz.api import POLICY_ONLY, Fit, FitError, GraphEditor, Site, Statistics, TechniqueConfig
from tamiz_ops.formats import GROUP

if TYPE_CHECKING:
    import onnx_ir as ir

Float = NDArray[np.float32]


class PopcountConfig(TechniqueConfig):
    """How activations are packed."""

    mode: Literal["binary", "ternary"] = Field(
        "ternary",
        description="Levels of an activation. binary: its sign; ternary: positive, zero or "
        "negative.",
        json_schema_extra={"flag": "--state-pack-mlp"},
    )
    eps: float = Field(
        1.0,
        ge=0,
        le=4,
        description="Largest input that counts as zero, in mean sizes of its group of 32 inputs, "
        "used with `ternary`.",
        json_schema_extra=POLICY_ONLY,
    )
    density: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Largest fraction of inputs that are not zero. A token with more is computed "
        "exactly.",
    )


def fit(site: Site, weight: Float, statistics: Statistics | None, config: PopcountConfig) -> Fit:
    """Turns the configuration into attributes of the op, and measures what packing loses.

    Args:
        site: A product of a feed-forward block.
        weight: float32 ``[N, K]``.
        statistics: Of the site's input; None measures nothing.
        config: How activations are packed.

    Returns:
        Attributes; with statistics the metrics ``density`` and ``output_rel_l2`` =
        ‖W (x − x̂)‖ / ‖W x‖ on the samples.
    """
    eps = config.eps if config.mode == "ternary" else 0.0
    metrics = {}
    if statistics is not None and len(statistics.samples):
        x = statistics.samples.astype(np.float64)
        packed, density = pack(x, eps)
        packed = np.where(density[:, None] <= config.density, packed, x)
        lost, whole = (x - packed) @ weight.T, x @ weight.T
        metrics = {
            "density": float(density.mean()),
            "output_rel_l2": float(np.linalg.norm(lost) / max(np.linalg.norm(whole), 1e-30)),
        }
        if not np.isfinite(list(metrics.values())).all():
            raise FitError("its products on the calibration text are not finite")
    return Fit(attributes={"epsilon": eps, "density": config.density}, metrics=metrics)


def pack(x: NDArray[np.float64], eps: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """γ a of rows ``[S, K]``, and of each row the fraction of a that are not 0 ``[S]``."""
    groups = np.pad(x, ((0, 0), (0, -x.shape[1] % GROUP))).reshape(len(x), -1, GROUP)
    sizes = np.abs(groups)
    chosen = sizes > eps * sizes.mean(axis=2, keepdims=True)
    count = chosen.sum(axis=2, keepdims=True)
    gamma = (sizes * chosen).sum(axis=2, keepdims=True) / np.maximum(count, 1)
    packed = (gamma * chosen * np.sign(groups)).reshape(len(x), -1)[:, : x.shape[1]]
    return packed, count.sum(axis=(1, 2)) / x.shape[1]


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Puts PopcountMatMul where the product with ternary weights stood.

    Raises:
        FitError: The weights that stand there are not packed in planes.
    """
    graph = GraphEditor(model)
    node = graph.op(site, "TernaryMatMul")
    attributes = {name: value.value for name, value in node.attributes.items()}
    attributes |= fit.attributes
    return [graph.replace(node, "PopcountMatMul", node.inputs, attributes)]
