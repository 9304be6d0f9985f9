"""Column skip of a feed-forward block: inputs of the down projection that are 0 are not read.

    y = Σ_{i: |x_i| > eps} W_i x_i          with eps = 0 exactly W x

which pays where the activation gives exact zeros, as ReLU does (Mirzadeh et al. 2023). Whether it
does is seen on the calibration samples: a site with more than `PAYS` of them left is refused, and
at run time a token with more than `MOST` is computed whole. In a block with a gate `unneeded` lets
`up` skip what that mask leaves out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tamiz.api import (
    POLICY_ONLY,
    Cost,
    Fit,
    FitError,
    GraphEditor,
    Site,
    Statistics,
    TechniqueConfig,
    input_of,
)

if TYPE_CHECKING:
    import onnx_ir as ir

Float = NDArray[np.float32]

#: Largest mean fraction of inputs left at which a site is masked. Reads with gaps are slower than a
#: stream, so a mask has to save more than that: decode steps with a gate were 1.35 to 1.44 × as
#: fast at 0.2 on a Zen 5. At 0.3 they were 1.18 to 1.28 × as fast, without a gate 1.04 ×, and both
#: were slower than whole ones on a loaded Zen 4 (`python -m benchmarks zeros`). A constant and no
#: measurement of the build: builds of one model are to choose alike.
PAYS = 0.2
#: Largest fraction of inputs left at which a token of a masked site skips.
MOST = 0.3


class ZeroMaskConfig(TechniqueConfig):
    """What counts as zero, and how many zeros there must be."""

    eps: float = Field(0.0, ge=0, description="Largest size of an input that counts as zero.")
    block: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Inputs that are skipped together, if their length is at most `eps`. By "
        "default the block of the weights, which the plan shows: 1 with block-quant.",
        json_schema_extra=POLICY_ONLY,
    )
    density: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Largest fraction of blocks that are not zero. A token with more is computed "
        f"whole, by default {MOST}; a site with more on the calibration text is refused, by "
        f"default {PAYS}.",
    )

    @property
    def of_site(self) -> float:
        """Largest density of a site on the calibration text."""
        return PAYS if self.density is None else self.density

    @property
    def of_token(self) -> float:
        """Largest density of a token that skips."""
        return MOST if self.density is None else self.density


def fit(site: Site, weight: Float, statistics: Statistics | None, config: ZeroMaskConfig) -> Fit:
    """Measures how many inputs are left, and what is lost.

    Args:
        site: A down projection.
        weight: float32 ``[N, K]``.
        statistics: Of the site's input.
        config: What counts as zero.

    Returns:
        Attributes of the op; metrics ``density`` (fraction of blocks left), ``exact`` and
        ``output_rel_l2`` = ‖W (x − x_left)‖ / ‖W x‖ on the samples.

    Raises:
        FitError: Nothing is known of its input, or too little of it is zero.
    """
    if statistics is None or not len(statistics.samples):
        raise FitError("nothing is known of its input")
    x, width = statistics.samples, config.block or 1
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % width)))
    blocks = padded.reshape(len(x), -1, width)
    left = np.sqrt(np.square(blocks).sum(axis=2)) > config.eps
    density = float(left.mean())
    if density > config.of_site:
        raise FitError(
            f"{density:.2f} of its inputs are not zero on the calibration text, more than density "
            f"{config.of_site:g}" + (": skipping would not pay" if config.density is None else "")
        )
    metrics = {"density": density, "exact": float(config.eps == 0)}
    if config.eps > 0:
        lost = np.where(left[:, :, None], 0, blocks).reshape(len(x), -1)[:, : x.shape[1]]
        whole = np.linalg.norm(x @ weight.T)
        metrics["output_rel_l2"] = float(np.linalg.norm(lost @ weight.T) / max(whole, 1e-30))
        if not np.isfinite(metrics["output_rel_l2"]):
            raise FitError("its products on the calibration text are not finite")
    attributes = {"block": width, "epsilon": config.eps, "density": config.of_token}
    return Fit(attributes=attributes, metrics=metrics)


def effect(site: Site, config: ZeroMaskConfig, cost: Cost, keys: int) -> Cost:
    """A step reads the weights of at most that part of the inputs, and all scales."""
    return cost.masked(config.of_site)


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Puts ZeroMask before the product, which takes it as its mask.

    Raises:
        FitError: The op of the weights takes no mask.
    """
    graph = GraphEditor(model)
    node, mask = graph.masked(site), graph.value(f"{site.id}.zero.mask", "UINT8")
    x = {"x": input_of(node, "x")}
    mask_node = graph.insert(node, f"{site.id}.zero", "ZeroMask", x, fit.attributes, [mask])
    graph.connect(node, "mask", mask)
    graph.set(node, {"block": int(fit.attributes["block"])})
    return [mask_node, node]
