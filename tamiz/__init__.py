"""Transformer models, faster and smaller on CPUs, inside plain ONNX Runtime.

``tamiz.load`` opens a model for a program; see `tamiz.inference`. ``from tamiz import Technique``
gives any name of `tamiz.api`. Importing `tamiz` alone stays light.
"""

import os
from importlib import import_module, util
from typing import Any

# onnxruntime 1.29 and newer look up a host to send telemetry to, unless this is set before they are
# imported. Processes that this one starts inherit it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.1.0"

#: Modules of the names for programs that run a bundle; they load no plugin.
_FOR_PROGRAMS = {
    "Completion": "inference.results",
    "CompletionStream": "inference.completion_stream",
    "Conversation": "inference.conversation",
    "CrossEncoder": "inference.cross_encoder",
    "EmbeddingModel": "inference.embedding_model",
    "LanguageModel": "inference.language_model",
    "TamizError": "files.errors",
    "load": "loading",
}


def __getattr__(name: str) -> Any:
    """Takes a public name from where it is defined when it is first used."""
    if name in _FOR_PROGRAMS:
        return getattr(import_module(f"{__name__}.{_FOR_PROGRAMS[name]}"), name)
    if util.find_spec(f"{__name__}.{name}") is None:
        api = import_module(f"{__name__}.api")
        if name in api.__all__:
            return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
