"""The op library in ONNX Runtime: loading it and reading what its nodes counted."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tamiz_ops import _native

if TYPE_CHECKING:
    import onnxruntime

_TAG = "tamiz.session"
_numbers = itertools.count(1)


def library_path() -> str:
    """Returns the path of the library for `SessionOptions.register_custom_ops_library`."""
    name = "libtamiz_ops.dylib" if sys.platform == "darwin" else "libtamiz_ops.so"
    return str(Path(__file__).with_name(name))


def register(session_options: onnxruntime.SessionOptions) -> None:
    """Makes the ops of the `tamiz` domain known to the sessions of these options.

    Sessions made of the same options count into the same metrics. Calling again does nothing.

    Args:
        session_options: options of the session to come; gets one config entry that names it.

    Raises:
        RuntimeError: the environment variable `TAMIZ_ISA` names an instruction set that is unknown
            or that this CPU lacks.
    """
    if _tag(session_options) is None:
        tag = f"{os.getpid()}.{next(_numbers)}"
        session_options.add_session_config_entry(_TAG, tag)
        session_options.register_custom_ops_library(library_path())


def metrics(session: onnxruntime.InferenceSession) -> dict[str, dict[str, float]]:
    """Returns name → metric → sum since the session was made or since the last reset.

    A name is that of a node, which has `calls` and `tokens`, or of a part of a `Fused` node, a
    layer for instance; `schemas()` describes the metrics of each op.

    Raises:
        ValueError: the session's options did not go through `register`.
    """
    return _native.metrics(_session_tag(session))


def reset_metrics(session: onnxruntime.InferenceSession) -> None:
    """Sets all metrics of the session to zero.

    Raises:
        ValueError: the session's options did not go through `register`.
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
