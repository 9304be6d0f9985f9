"""Transformer models, faster and smaller on CPUs, inside plain ONNX Runtime.

``from tamiz import Technique`` gives any name of `tamiz.api`; importing `tamiz` alone stays light.
"""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Takes a public name from `tamiz.api` when it is first used."""
    from importlib import import_module, util

    if util.find_spec(f"{__name__}.{name}") is None:
        api = import_module(f"{__name__}.api")
        if name in api.__all__:
            return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
