"""Runs bundles: model, sequences, sampling, tokenizer, chat. Needs numpy and onnxruntime only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tamiz.runtime.batching.batch import Batch

__all__ = ["Batch"]


def __getattr__(name: str) -> Any:
    """Imports what is named here when it is used: onnxruntime takes long to load."""
    if name != "Batch":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from tamiz.runtime.batching.batch import Batch

    return Batch
