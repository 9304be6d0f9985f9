"""What a build does to a graph, without files: passes, a fit for each site, rewrites, fusion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from kit.beside_onnxruntime import expected, run
from kit.equal_passes import assert_close
from kit.rounding_noise import NOISE, NOISE_OF_INPUTS, Spread
from tamiz.api.editing import GraphEditor
from tamiz.api.linear import weight_array
from tamiz.api.passes import Phase
from tamiz.api.site import Site, SiteKind
from tamiz.api.technique import FitError, Technique
from tamiz.plugins import Plugins
from tamiz.survey.survey import run_passes

#: What outputs may differ by without a closer look, relative to the largest number: passes and
#: norms in one kernel round otherwise, and float16 in the graph more; products with packed weights
#: round their inputs to 16 bits.
ROUNDING, HALF_ROUNDING, ROUNDED_INPUTS = 2e-6, 1e-3, 1e-4

#: A technique and its settings.
Build = tuple[str, Mapping[str, Any]]


@dataclass
class Checked:
    """What was compared.

    Attributes:
        sites: Ids of the sites.
        shares: Whether some of them share a weight.
        looked_closer: Comparisons that needed the noise of rounding.
        blind: Those of them in which a wrong output would not have been seen.
    """

    sites: list[str] = field(default_factory=list)
    shares: bool = False
    looked_closer: int = 0
    blind: int = 0


def check(
    model: onnx.ModelProto,
    inputs: Mapping[str, Any],
    plugins: Plugins,
    builds: Sequence[Build] = (("block-quant", {"format": "q8_0"}),),
) -> Checked:
    """Compares a model with itself after the passes, and after a technique.

    The reference of a build is the dense graph with the weights that the technique stores, in ONNX
    Runtime's own products: what is left is rounding.

    Args:
        model: The model.
        inputs: Its inputs.
        plugins: The loaded plugins.
        builds: Techniques that store weights in another way; without one the dense graph is fused.

    Raises:
        Refused: Plain ONNX Runtime does not run the model.
        AssertionError: An output is missing or differs.
    """
    reference = expected(model, inputs, optimised=False)
    checked = Checked()
    recognised = ir.from_proto(model)
    run_passes(recognised, plugins, Phase.RECOGNISE)
    found = plugins.find_sites(recognised)
    assert found is not None
    checked.sites = [site.id for site in found[0]]
    checked.shares = any(site.shared for site in found[0])
    if not builds or not found[0]:
        run_passes(recognised, plugins, Phase.FUSE)
    half = _has_half(model)
    _compare(
        _run(recognised, inputs),
        reference,
        HALF_ROUNDING if half else ROUNDING,
        lambda: Spread.of(model, inputs, NOISE),
        checked,
    )
    for name, settings in builds if found[0] else ():
        stored, built = _stored_and_built(
            recognised, found[0], plugins.techniques()[name], settings
        )
        run_passes(built, plugins, Phase.FUSE)
        proto = ir.to_proto(stored)
        _compare(
            _run(built, inputs),
            run(proto.SerializeToString(), inputs, ops=True, optimised=False),
            HALF_ROUNDING if half else ROUNDED_INPUTS,
            lambda proto=proto: Spread.of(proto, inputs, NOISE_OF_INPUTS),  # type: ignore[misc]
            checked,
        )
    return checked


def _stored_and_built(
    recognised: ir.Model,
    sites: Sequence[Site],
    technique: Technique,
    settings: Mapping[str, Any],
) -> tuple[ir.Model, ir.Model]:
    """The dense graph with the weights that a technique stores, and the graph with its ops."""
    config = technique.config.model_validate(settings)
    stored, built = recognised.clone(), recognised.clone()
    for site in sites:
        linear = GraphEditor(recognised).linear(site)
        try:
            fit = technique.fit(site, np.array(weight_array(linear, site)), None, config)  # type: ignore[arg-type]
        except FitError:
            continue
        assert technique.dequantize is not None
        _store(stored, site, technique.dequantize(site, fit))
        technique.rewrite(site, fit, built)
    return stored, built


def _has_half(model: onnx.ModelProto) -> bool:
    """Whether the graph has float16 inside of it."""
    casts = [node for node in model.graph.node if node.op_type == "Cast"]
    return any(node.attribute[0].i == onnx.TensorProto.FLOAT16 for node in casts)


def _store(model: ir.Model, site: Site, weight: np.ndarray) -> None:
    """Gives the dense product at a site a weight ``[N, K]`` of its own."""
    node = next(node for node in model.graph if node.name == site.node)
    by_rows = node.op_type == "Gather" or (
        "transB" in node.attributes and node.attributes["transB"].as_int() == 1
    )
    assert site.kind is not SiteKind.EMBEDDING or node.op_type == "Gather"
    name = f"{site.id}/stored"
    array = np.ascontiguousarray(weight if by_rows else weight.T, np.float32)
    value = ir.Value(
        name=name,
        shape=ir.Shape(array.shape),
        type=ir.TensorType(ir.DataType.FLOAT),
        const_value=ir.tensor(array, name=name),
    )
    model.graph.register_initializer(value)
    node.replace_input_with(0 if node.op_type == "Gather" else 1, value)


def _run(model: ir.Model, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return run(ir.to_proto(model).SerializeToString(), inputs, ops=True, optimised=False)


def _compare(
    found: Mapping[str, Any],
    reference: Mapping[str, Any],
    tolerance: float,
    spread: Callable[[], Spread],
    checked: Checked,
) -> None:
    """Compares outputs within a tolerance, and those beyond it with the noise of rounding."""
    assert list(found) == list(reference)
    moved: Spread | None = None
    for name, value in reference.items():
        try:
            assert_close(found[name], value, tolerance, name)
        except AssertionError:
            if moved is None:
                moved = spread()
                checked.looked_closer += 1
            if not moved.explains(name, found[name], value, tolerance):
                raise
            checked.blind += moved.blinds(name, value)
