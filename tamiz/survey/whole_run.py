"""Runs of a whole model in plain ONNX Runtime: all outputs on one input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import tamiz_ops
from tamiz.survey.sample_inputs import Feeds

#: Types of 16 bits, for which an export computes in float32.
HALVES = (np.dtype(np.float16),)


def open_session(model: Path, *, optimised: bool = False) -> ort.InferenceSession:
    """A session that is deterministic, and without a second copy of the weights."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised, so they are not logged as well
    options.add_session_config_entry("session.disable_prepacking", "1")
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    tamiz_ops.register(options)
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def run(session: ort.InferenceSession, feeds: Feeds) -> dict[str, Any]:
    """All outputs of a model, by name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def run_changed(session: ort.InferenceSession, feeds: Feeds) -> dict[str, Any]:
    """All outputs of a model that was made from another one, on an input of that one.

    Args:
        session: Of the new model, which may take caches in another form and keep more states.
        feeds: An input of its source.
    """
    known = _fitting(feeds, session)
    return run(session, known | _more_states(session, known))


def tensors(values: Iterable[Any]) -> list[Any]:
    """The tensors of outputs, of sequences one after the other."""
    arrays: list[Any] = []
    for value in values:
        if isinstance(value, Sequence) and not isinstance(value, str):
            arrays += tensors(value)
        elif isinstance(value, Mapping):
            arrays += tensors(value.values())
        elif value is not None:
            arrays.append(np.asarray(value))
    return arrays


def first_line(error: Exception) -> str:
    """The first line of what an error says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _fitting(feeds: Feeds, session: ort.InferenceSession) -> Feeds:
    """The inputs that a new model takes in its source's form; caches may have another."""
    nodes = {node.name: node for node in session.get_inputs()}

    def fits(value: Any, shape: list[int | str | None]) -> bool:
        if not isinstance(value, np.ndarray):
            return True
        pairs = zip(value.shape, shape, strict=False)
        return value.ndim == len(shape) and all(a == b for a, b in pairs if isinstance(b, int))

    def typed(value: Any, kind: str) -> Any:
        half = isinstance(value, np.ndarray) and value.dtype in HALVES
        return value.astype(np.float32) if half and kind == "tensor(float)" else value

    return {
        name: typed(value, nodes[name].type)
        for name, value in feeds.items()
        if name in nodes and fits(value, nodes[name].shape)
    }


def _more_states(session: ort.InferenceSession, feeds: Feeds) -> Feeds:
    """States that a technique keeps beside those of the dense model."""
    from tamiz.interface.states import State

    missing = [node for node in session.get_inputs() if node.name not in feeds]
    states = [(node.name, State.of(node)) for node in missing]
    return {name: state.zeros() for name, state in states if state is not None}
