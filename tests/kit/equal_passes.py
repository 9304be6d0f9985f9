"""Runs the passes of the phase `recognise` one by one, beside plain ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

import tamiz_ops
from tamiz.api.passes import Phase
from tamiz.plugins import load


def recognised(model: ir.Model) -> ir.Model:
    """A copy of a model after all passes of the phase `recognise`."""
    copy = model.clone()
    for graph_pass in load().passes(Phase.RECOGNISE):
        graph_pass()(copy)
    return copy


def check_each_pass(
    model: ir.Model, feeds: Mapping[str, np.ndarray], tolerance: float = 2e-6
) -> ir.Model:
    """Asserts after each pass that all outputs are those of ONNX Runtime, by name and order.

    Args:
        model: The model; it stays as it is.
        feeds: Its inputs.
        tolerance: Relative to the largest number of an output.

    Returns:
        The model after all passes.
    """
    expected, copy = outputs(model, feeds), model.clone()
    for graph_pass in load().passes(Phase.RECOGNISE):
        graph_pass()(copy)
        found = outputs(copy, feeds)
        assert list(found) == list(expected), graph_pass.name
        for name, value in expected.items():
            assert_close(found[name], value, tolerance, f"{name} after {graph_pass.name}")
    return copy


def outputs(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What a model computes, by name, in order."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    tamiz_ops.register(options)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    made = [output.name for output in session.get_outputs()]
    return dict(zip(made, session.run(made, dict(feeds)), strict=True))


def assert_close(found: Any, expected: Any, tolerance: float, what: str) -> None:
    """Compares tensors and sequences of them."""
    if isinstance(expected, Sequence) and not isinstance(expected, str):
        assert len(found) == len(expected), what
        for a, b in zip(found, expected, strict=True):
            assert_close(a, b, tolerance, what)
        return
    a, b = np.asarray(found), np.asarray(expected)
    assert (a.shape, a.dtype) == (b.shape, b.dtype), what
    if b.dtype.kind not in "fc" or b.dtype.itemsize < 2:
        np.testing.assert_array_equal(a, b, err_msg=what)
        return
    finite = np.abs(b[np.isfinite(b)].astype(np.float64))
    np.testing.assert_allclose(
        a.astype(np.float64),
        b.astype(np.float64),
        rtol=0,
        atol=tolerance * (finite.max(initial=0.0) or 1.0),
        err_msg=what,
    )
