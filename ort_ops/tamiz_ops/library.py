"""The op library in ONNX Runtime: loading it and reading what its nodes counted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tamiz_ops import _native
from tamiz_ops.summaries import summarise, total

if TYPE_CHECKING:
    import onnxruntime

_TAG = "tamiz.session"


def library_path() -> str:
    """Returns the path of the library for `SessionOptions.register_custom_ops_library`."""
    suffix = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")
    return str(Path(__file__).with_name(f"libtamiz_ops.{suffix}"))


def register(session_options: onnxruntime.SessionOptions) -> None:
    """Makes the ops of the `tamiz` domain known to the sessions of these options.

    Sessions made of the same options count into the same metrics. Calling again does nothing.
    `session_options.register_custom_ops_library(library_path())` does the same once.

    Args:
        session_options: options of the session to come; gets one config entry that names it.

    Raises:
        RuntimeError: the environment variable `TAMIZ_ISA` names an instruction set that is unknown
            or that this CPU lacks.
    """
    if _tag(session_options) is None:
        session_options.register_custom_ops_library(library_path())


def metrics(session: onnxruntime.InferenceSession) -> dict[str, dict[str, float]]:
    """Returns name → metric → sum since the session was made or since the last reset.

    A name is that of a node, which has `calls` and `tokens`, or of a part of a `Fused` node, a
    layer for instance; `schemas()` describes the metrics of each op. Metrics of several ops that
    have one name add up.

    Raises:
        ValueError: the library was not registered with the session's options.
    """
    result: dict[str, dict[str, float]] = {}
    for name, by_op in op_counts(session).items():
        sums = result.setdefault(name, {})
        for counted in by_op.values():
            for metric, value in counted.items():
                sums[metric] = sums.get(metric, 0.0) + value
    return result


def op_counts(session: onnxruntime.InferenceSession) -> dict[str, dict[str, dict[str, float]]]:
    """Returns name → op → metric → sum, see `metrics`; the op of `calls` and `tokens` is "".

    Raises:
        ValueError: the library was not registered with the session's options.
    """
    return _native.metrics(_session_tag(session))


def summary(session: onnxruntime.InferenceSession) -> dict[str, dict[str, float | None]]:
    """Returns op → metric → what it says of the runs so far: shares, means and sums.

    The names are those that `tamiz run --metrics` prints, such as `kwta.keep_ratio`.

    Raises:
        ValueError: the library was not registered with the session's options.
    """
    counts = op_counts(session)
    ops = sorted({op for by_op in counts.values() for op in by_op if op})
    return {op: summarise(total(counts, [op])) for op in ops}


def reset_metrics(session: onnxruntime.InferenceSession) -> None:
    """Sets all metrics of the session to zero.

    Raises:
        ValueError: the library was not registered with the session's options.
    """
    _native.reset_metrics(_session_tag(session))


def _tag(session_options: onnxruntime.SessionOptions) -> str | None:
    try:
        return str(session_options.get_session_config_entry(_TAG))
    except RuntimeError:  # how ONNX Runtime tells that there is no such entry
        return None


def _session_tag(session: onnxruntime.InferenceSession) -> str:
    tag = _tag(session.get_session_options())
    if tag is None:
        raise ValueError("the session counts no metrics: call tamiz_ops.register on its options")
    return tag
