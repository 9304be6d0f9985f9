"""Techniques that only change dense weights: the shortest ones there are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamiz.api.cost import Cost
from tamiz.api.editing import GraphEditor
from tamiz.api.linear import Linear
from tamiz.api.site import Site, SiteKind
from tamiz.api.statistics import Statistics
from tamiz.api.technique import Claim, Fit, FitError, Resource, Technique

if TYPE_CHECKING:
    import onnx_ir as ir

Change = Callable[[NDArray[np.float32], Any], NDArray[Any]]


def replace_weight(
    name: str,
    summary: str,
    change: Change,
    *,
    dtype: type[np.float32 | np.float16] = np.float32,
    **others: Any,
) -> Technique:
    """A technique that stores another dense weight for every linear layer.

    Args:
        name: Its name, ``hello-half``.
        summary: One sentence.
        change: ``change(weight, config)``: the new weight ``[N, K]`` for float32 ``[N, K]``. A
            function of a module, as it may run in another process.
        dtype: How the new weight is stored. float16 takes half of the bytes; a node of the graph
            casts it to float32.
        others: Other attributes of `Technique`, such as ``config`` or ``tensors``.
    """
    declared: dict[str, Any] = {
        "name": name,
        "summary": summary,
        "site_kinds": {SiteKind.LINEAR},
        "claims": (Claim(Resource.WEIGHTS),),
        "fit": partial(_fit, change, dtype),
        "rewrite": partial(_rewrite, name),
        "cost": partial(_cost, dtype),
        "dequantize": _dequantize,
    }
    return Technique(**(declared | others))


def _fit(
    change: Change,
    dtype: type[np.float32 | np.float16],
    site: Site,
    weight: NDArray[np.float32],
    statistics: Statistics | None,
    config: Any,
) -> Fit:
    with np.errstate(over="ignore"):  # infinity is refused below
        changed = np.ascontiguousarray(change(weight, config), dtype)
    if changed.shape != weight.shape:
        raise FitError(f"its new weight has shape {changed.shape}, expected {weight.shape}")
    if not np.isfinite(changed).all():
        raise FitError("its new weight is not finite")
    exact = float(np.array_equal(changed, weight))
    bits = 8.0 * changed.itemsize
    return Fit({"weight": changed}, metrics={"exact": exact}, bits_per_weight=bits)


def _rewrite(name: str, site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    graph = GraphEditor(model)
    linear = graph.linear(site)
    node = linear.node
    if site.format is not None:
        return _unpacked(graph, f"{site.id}.{name}", linear, fit.tensors["weight"].T)
    by_rows = "transB" in node.attributes and node.attributes["transB"].as_int() == 1
    stored = fit.tensors["weight"] if by_rows else fit.tensors["weight"].T
    value, casts = _float32(graph, node, f"{site.id}.{name}", stored)
    node.replace_input_with(1, value)
    return [*casts, node]


def _float32(
    graph: GraphEditor, at: ir.Node, name: str, weight: NDArray[Any]
) -> tuple[ir.Value, list[ir.Node]]:
    """A constant as float32, and the node before `at` that casts it where it is stored smaller."""
    constant = graph.constant(name, np.ascontiguousarray(weight))
    if weight.dtype == np.float32:
        return constant, []
    value = graph.value(f"{name}.float32", "FLOAT")
    cast = graph.insert(at, f"{at.name}.cast", "Cast", [constant], {"to": 1}, [value], domain="")
    return value, [cast]


def _unpacked(graph: GraphEditor, name: str, linear: Linear, weight: NDArray[Any]) -> list[ir.Node]:
    """Puts a dense product for one with a packed weight: y = x W (+ bias), W ``[K, N]``."""
    value, casts = _float32(graph, linear.node, name, weight)
    inputs = [linear.input, value]
    if linear.bias is None:
        return [*casts, graph.replace(linear, "MatMul", inputs, {}, domain="")]
    y = graph.value(f"{linear.output.name}.product", like=linear.output)
    at, of = linear.node, f"{linear.node.name}.product"
    product = graph.insert(at, of, "MatMul", inputs, {}, [y], domain="")
    return [*casts, product, graph.replace(linear, "Add", [y, linear.bias], {}, domain="")]


def _cost(dtype: type[np.float32 | np.float16], site: Site, config: Any) -> Cost:
    stored = np.dtype(dtype).itemsize * site.out_features * site.in_features
    return Cost(stored, stored)


def _dequantize(site: Site, fit: Fit) -> NDArray[np.float32]:
    return np.asarray(fit.tensors["weight"], np.float32)
