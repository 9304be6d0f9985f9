"""What a build does to a graph, without files: passes, a fit for each site, rewrites, fusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from kit.beside_onnxruntime import expected, run
from kit.equal_passes import assert_close
from tamiz.api.editing import GraphEditor
from tamiz.api.linear import weight_array
from tamiz.api.passes import Phase
from tamiz.api.technique import FitError
from tamiz.plugins import Plugins
from tamiz.survey.survey import run_passes

#: Passes and norms in one kernel only round otherwise, float16 in the graph more; products round
#: their inputs to 16 bits, and what follows may enlarge that. What is wrong differs by about 1.
ROUNDING, HALF_ROUNDING, ROUNDED_INPUTS = 2e-5, 5e-3, 1e-1
EXACT_INTEGERS = (ROUNDING, HALF_ROUNDING)
#: The format whose outputs are those of the weights, and the smallest cosine with other formats.
EXACT, ALIKE = "q8_0", 0.9


def check(
    model: onnx.ModelProto,
    inputs: Mapping[str, Any],
    plugins: Plugins,
    formats: Sequence[str] = (EXACT,),
) -> list[str]:
    """Compares a model with itself after the passes, and after block-quant in each format.

    Args:
        model: The model, whose weights the format `EXACT` stores exactly.
        inputs: Its inputs.
        plugins: The loaded plugins.
        formats: Weight formats.

    Returns:
        Ids of the sites.

    Raises:
        Refused: Plain ONNX Runtime does not run the model.
        AssertionError: An output is missing or differs.
    """
    reference = expected(model, inputs, optimised=False)
    recognised = ir.from_proto(model)
    run_passes(recognised, plugins, Phase.RECOGNISE)
    found = plugins.find_sites(recognised)
    assert found is not None
    dense = recognised.clone()
    run_passes(dense, plugins, Phase.FUSE)
    casts = [node for node in model.graph.node if node.op_type == "Cast"]
    half = any(node.attribute[0].i == onnx.TensorProto.FLOAT16 for node in casts)
    _compare(dense, inputs, reference, HALF_ROUNDING if half else ROUNDING)
    technique = plugins.techniques()["block-quant"]
    for name in formats if found[0] else ():
        built = recognised.clone()
        config = technique.config.model_validate({"format": name, "fit": _fit(name)})
        for site in found[0]:
            linear = GraphEditor(recognised).linear(site)
            try:
                fit = technique.fit(site, np.array(weight_array(linear, site)), None, config)  # type: ignore[arg-type]
            except FitError:
                continue
            technique.rewrite(site, fit, built)
        run_passes(built, plugins, Phase.FUSE)
        _compare(built, inputs, reference, ROUNDED_INPUTS if name == EXACT else None)
    return [site.id for site in found[0]]


def _fit(name: str) -> str | None:
    """How scales are found; from the extremes, they are those of exact weights."""
    return "nearest" if name == EXACT else None


def _compare(
    model: ir.Model,
    inputs: Mapping[str, Any],
    reference: Mapping[str, Any],
    tolerance: float | None,
) -> None:
    """Compares outputs within a tolerance; by their cosine where it is None."""
    made = run(ir.to_proto(model).SerializeToString(), inputs, ops=True, optimised=False)
    assert list(made) == list(reference)
    for name, value in reference.items():
        if np.asarray(value).dtype.kind not in "fc" and tolerance not in EXACT_INTEGERS:
            continue  # whole numbers of what was rounded
        if tolerance is not None:
            assert_close(made[name], value, tolerance, name)
            continue
        a, b = (np.asarray(v, np.float64).ravel() for v in (made[name], value))
        assert a @ b >= ALIKE * np.linalg.norm(a) * np.linalg.norm(b), name
