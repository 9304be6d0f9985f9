"""Transformer models, faster and smaller on CPUs, inside plain ONNX Runtime.

``from tamiz import Technique`` gives any name of `tamiz.api`; importing `tamiz` alone stays light.
"""

import os
from typing import Any

# onnxruntime 1.29 and newer look up a host to send telemetry to, unless this is set before they are
# imported. Processes that this one starts inherit it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Takes a public name from `tamiz.api` when it is first used."""
    from importlib import import_module, util

    if util.find_spec(f"{__name__}.{name}") is None:
        api = import_module(f"{__name__}.api")
        if name in api.__all__:
            return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
