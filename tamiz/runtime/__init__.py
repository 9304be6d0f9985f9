"""Runs bundles: models, sequences, sampling, text. Needs numpy, onnxruntime and tokenizers only.

Every name of `__all__` is imported when it is first used, because onnxruntime takes long to load.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tamiz.runtime.batching.batch import Batch
    from tamiz.runtime.batching.member import Member
    from tamiz.runtime.model import Model
    from tamiz.runtime.sampling import Sampling
    from tamiz.runtime.sequence import Sequence
    from tamiz.runtime.speculation.settings import Speculation
    from tamiz.runtime.speculation.statistics import SpeculationStatistics
    from tamiz.runtime.text.chat_template import ChatTemplate, encode_chat
    from tamiz.runtime.text.stream import Speed, generate_text
    from tamiz.runtime.text.tokenizer import Tokenizer

__all__ = [
    "Batch",
    "ChatTemplate",
    "Member",
    "Model",
    "Sampling",
    "Sequence",
    "Speculation",
    "SpeculationStatistics",
    "Speed",
    "Tokenizer",
    "encode_chat",
    "generate_text",
]

_MODULES = {
    "batching.batch": ("Batch",),
    "batching.member": ("Member",),
    "model": ("Model",),
    "sampling": ("Sampling",),
    "sequence": ("Sequence",),
    "speculation.settings": ("Speculation",),
    "speculation.statistics": ("SpeculationStatistics",),
    "text.chat_template": ("ChatTemplate", "encode_chat"),
    "text.stream": ("Speed", "generate_text"),
    "text.tokenizer": ("Tokenizer",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
