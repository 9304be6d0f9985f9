"""Finds which graph pass makes another model of a dense one, and products that point elsewhere."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tamiz.api.linear import linear_at, stored_format, weight_array
from tamiz.api.ports import product_of
from tamiz.api.site import Site, SiteKind
from tamiz.files.bundle import MODEL, Bundle
from tamiz.files.mapping import map_tensors
from tamiz.interface.metadata import DOMAIN
from tamiz.survey.self_check import DifferentModelError, Reference
from tamiz.survey.survey import Survey

if TYPE_CHECKING:
    import onnx_ir as ir

    from tamiz.plugins import Plugins

#: Numbers of a product that are compared at least, and the smallest cosine between the product of a
#: site and that of its dense weight: a wrong orientation gives 0 ± 1 / sqrt(numbers).
_NUMBERS, _ALIKE = 4096, 0.1
_SEED = 0


def first_broken_pass(
    dense: Bundle, plugins: Plugins, reference: Reference
) -> tuple[str, DifferentModelError] | None:
    """The first graph pass after which a dense model gives other outputs.

    Args:
        dense: Its bundle.
        plugins: The loaded plugins, whose passes run one by one.
        reference: What the model gives before.

    Returns:
        The pass's name, and what differs; None where no pass alone does it.
    """
    import onnx_ir as ir

    from tamiz.api.passes import Phase

    model = ir.load(dense.model)
    map_tensors(model, dense.path)
    for graph_pass in (*plugins.passes(Phase.RECOGNISE), *plugins.passes(Phase.FUSE)):
        graph_pass()(model)
        with tempfile.TemporaryDirectory(prefix="tamiz-") as folder:
            path = Path(folder) / MODEL
            ir.save(model.clone(), path, external_data=f"{MODEL}.data")
            try:
                reference.compare(path, techniques=False, lossy=False)
            except DifferentModelError as error:
                return graph_pass.name, error
    return None


def check_products(survey: Survey, model: ir.Model, sites: Iterable[Site]) -> None:
    """Compares the product at each site with that of its dense weight, on random inputs.

    A lossy build may change all outputs, so that one site with a wrong weight among many would not
    be seen in them.

    Args:
        survey: The dense model.
        model: The graph after all techniques, before its nodes are fused.
        sites: Where techniques were applied.

    Raises:
        DifferentModelError: The product of a site points elsewhere.
    """
    before = {node.name: node for node in survey.model.graph}
    after = {node.name: node for node in model.graph}
    generator = np.random.default_rng(_SEED)
    for site in sites:
        node, dense = after.get(site.node), before[site.node]
        linear = site.weight is not None and site.kind is not SiteKind.EMBEDDING
        if not linear or node is None or node.domain != DOMAIN or node.op_type == dense.op_type:
            continue
        rows = -(-_NUMBERS // site.out_features)
        x = generator.standard_normal((rows, site.in_features)).astype(np.float32)
        try:
            products = np.stack([product_of(node, row) for row in x])
        except (ValueError, RuntimeError, KeyError):
            continue  # no product alone, such as one of a state
        expected = _dense_product(dense, site, x)
        finite = np.isfinite(products)
        a, b = expected[finite].astype(np.float64), products[finite].astype(np.float64)
        norms = np.linalg.norm(a) * np.linalg.norm(b)
        if norms and a @ b < _ALIKE * norms:
            raise DifferentModelError(
                f"site {site.id}: the product of {node.op_type} has a cosine of {a @ b / norms:.2g}"
                f" with that of its dense weight, expected at least {_ALIKE}"
            )


def _dense_product(node: ir.Node, site: Site, x: np.ndarray) -> np.ndarray:
    """x Wᵀ by the dense model's node."""
    if stored_format(node) is not None:
        return np.stack([product_of(node, row) for row in x])
    product: np.ndarray = x @ weight_array(linear_at(node), site).T
    return product
