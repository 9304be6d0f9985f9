"""Runs a dense and a built model on one small random input and compares what they give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import tamiz_ops
from tamiz.evaluation.evaluate import log_softmax
from tamiz.files.errors import TamizError
from tamiz.interface.states import PAST, State

TOKENS = 8
SEED = 0


def compare(dense: Path, built: Path, vocabulary: int) -> dict[str, float]:
    """Compares the first output of two models with the same inputs.

    Args:
        dense: The dense ``model.onnx``.
        built: The built ``model.onnx``.
        vocabulary: Token ids are drawn below this.

    Returns:
        ``max_relative_error`` = max |y − ŷ| / max |y|; and for logits ``kl_mean``, the mean over
        tokens of KL(dense ‖ built) in nats, and ``top1_agreement``, a fraction. Three digits, so
        that they do not depend on the order of additions. Logits of -inf are tokens that a
        technique leaves out: the error is that of the others, and there is no ``kl_mean``.

    Raises:
        TamizError: The dense model does not run, or gives other than finite numbers.
        RuntimeError: The same of the built model, or it leaves out every token.
    """
    try:
        name, expected = _run(dense, vocabulary)
    except Exception as error:  # onnxruntime raises a class for every status
        raise TamizError(f"{dense}: the dense model does not run: {error}") from error
    if not np.isfinite(expected).all():
        raise TamizError(f"{dense}: the dense model's {name} is not finite on a random input")
    try:
        _, found = _run(built, vocabulary)
    except Exception as error:
        raise RuntimeError(f"the built model does not run: {error}") from error
    finite = np.isfinite(found)
    whole = finite | np.isneginf(found) if name == "logits" else finite
    if found.shape != expected.shape or not (whole.all() and finite.any(axis=-1).all()):
        raise RuntimeError(f"the built model's {name} is not finite or has another shape")
    scale = np.abs(expected).max(initial=0.0) or 1.0
    result = {"max_relative_error": np.abs((found - expected)[finite]).max(initial=0.0) / scale}
    if name == "logits":
        p, q = log_softmax(expected), log_softmax(found)
        if finite.all():
            result["kl_mean"] = max(0.0, (np.exp(p) * (p - q)).sum(axis=-1).mean())
        result["top1_agreement"] = (expected.argmax(-1) == found.argmax(-1)).mean()
    return {key: float(f"{value:.3g}") for key, value in result.items()}


def _run(model: Path, vocabulary: int) -> tuple[str, Any]:
    """Name and value (float64) of the model's first output on the random input."""
    options = ort.SessionOptions()
    # Deterministic, and without a second copy of the weights.
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised, so they are not logged as well
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    tamiz_ops.register(options)
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(SEED)
    feeds = {i.name: _feed(i, vocabulary, generator) for i in session.get_inputs()}
    name = session.get_outputs()[0].name
    return name, session.run([name], feeds)[0].astype(np.float64)


def _feed(node: Any, vocabulary: int, generator: np.random.Generator) -> Any:
    """One input: 8 tokens of one sequence that nothing precedes."""
    if node.name.startswith(PAST) and (state := State.of(node)):
        return state.zeros()
    shape = [_length(dim, axis) for axis, dim in enumerate(node.shape)]
    if "int" not in node.type and node.type != "tensor(bool)":
        return generator.standard_normal(shape).astype(
            np.float16 if "float16" in node.type else np.float32
        )
    values: Any
    if "position" in node.name:
        values = np.broadcast_to(np.arange(shape[-1] if shape else 1), shape)
    elif "mask" in node.name:
        values = np.ones(shape)
    elif "type" in node.name:
        values = np.zeros(shape)
    else:
        values = generator.integers(0, vocabulary, shape)
    kind = np.int32 if node.type == "tensor(int32)" else np.int64
    return values.astype(np.bool_ if node.type == "tensor(bool)" else kind)


def _length(dim: int | str | None, axis: int) -> int:
    """Length of one dimension, from its name where it is not fixed."""
    if isinstance(dim, int):
        return dim
    if dim is not None and "past" in dim and "+" not in dim:
        return 0
    return 1 if axis == 0 else TOKENS
