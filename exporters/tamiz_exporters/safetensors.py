"""Export of safetensors in Hugging Face's layout, for known architectures, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tamiz.api import TamizError, read_json, write_json
from tamiz_exporters.architectures import HF_ARCHITECTURES
from tamiz_exporters.companions import CONFIG, copy_companions
from tamiz_exporters.decoder_graph import build_decoder
from tamiz_exporters.encoder_graph import build_encoder
from tamiz_exporters.external_data import save_model
from tamiz_exporters.hf_encoder import HfEncoder, is_encoder
from tamiz_exporters.hf_model import HfModel
from tamiz_exporters.hf_traits import TEXT_CONFIG
from tamiz_exporters.safetensors_file import is_there
from tamiz_exporters.sentence_files import answer_tokens, is_embedder
from tamiz_exporters.text_decoder_graph import build_text_decoder

#: What the names of classes end with that have a head of labels.
_CLASSIFIES = "ForSequenceClassification"


def accepts(source: str) -> bool:
    """Whether `source` is a folder with safetensors of a decoder or an encoder that is known."""
    folder = Path(source)
    if not (folder / CONFIG).is_file() or not is_there(folder):
        return False
    try:
        config = read_json(folder / CONFIG)
    except TamizError:
        return True  # the export says what is wrong
    if is_encoder(config):
        return True
    kind = config.get("model_type")
    traits = HF_ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if traits is None:
        return False
    stem = traits.model_class.removesuffix("ForCausalLM")
    classes = [traits.model_class, f"{stem}{_CLASSIFIES}"]
    if is_embedder(folder):  # of which the head is not exported
        classes += [f"{stem}Model", f"{stem}TextModel"]
    given = config.get("architectures") or classes[:1]
    return isinstance(given, list) and len(given) == 1 and given[0] in classes


def export(
    source: str, directory: Path, dtype: str = "stored", activation: str | None = None
) -> str:
    """Writes the dense bundle's files.

    Args:
        source: A folder.
        directory: An existing, empty directory.
        dtype: ``stored`` keeps 16-bit weights as the files store them; ``float32`` converts them
            for a model in standard ops.
        activation: Of a decoder's feed-forward block, where ``config.json`` names none.

    Returns:
        `source`.

    Raises:
        TamizError: If a file is damaged or holds something that is not supported.
    """
    folder = Path(source)
    config = read_json(folder / CONFIG)
    if is_encoder(config):
        if activation is not None:
            raise TamizError(f"{source}: found --activation {activation}, expected none: encoder")
        _export_encoder(folder, directory, dtype == "stored")
    elif answer_tokens(folder) is not None or (_classifies(config) and not is_embedder(folder)):
        _export_classifier(folder, directory, dtype == "stored", activation)
    elif is_embedder(folder):
        _export_embedder(folder, directory, dtype == "stored", activation)
    else:
        _export_decoder(folder, directory, dtype == "stored", activation)
    return source


def _export_decoder(folder: Path, directory: Path, stored: bool, activation: str | None) -> None:
    model = HfModel(folder, activation)
    model.check_writes()
    save_model(build_decoder(model.config, model.weights().tensors(stored)), directory)
    copy_companions(folder, directory)
    config = read_json(directory / CONFIG)
    if (text := config.get(TEXT_CONFIG)) is not None:  # of a model that also reads pictures
        config = {**config, **text}
        del config[TEXT_CONFIG]
        write_json(directory / CONFIG, config)
    if config.get("max_position_embeddings") != model.context:
        write_json(directory / CONFIG, config | {"max_position_embeddings": model.context})


def _export_encoder(folder: Path, directory: Path, stored: bool) -> None:
    model = HfEncoder(folder)
    save_model(build_encoder(model.config, model.weights().tensors(stored)), directory)
    copy_companions(folder, directory)


def _export_embedder(folder: Path, directory: Path, stored: bool, activation: str | None) -> None:
    """A decoder that embeds texts, such as Qwen3-Embedding: hidden states, without cache."""
    model = HfModel(folder, activation)
    model.check_embeds()
    weights = model.weights(head=False).tensors(stored)
    save_model(build_text_decoder(model.config, model.hidden, weights), directory)
    copy_companions(folder, directory)


def _classifies(config: dict[str, Any]) -> bool:
    names = config.get("architectures")
    return isinstance(names, list) and len(names) == 1 and str(names[0]).endswith(_CLASSIFIES)


def _export_classifier(folder: Path, directory: Path, stored: bool, activation: str | None) -> None:
    """A decoder that scores texts by their last token, such as Qwen3-Reranker: without cache."""
    model = HfModel(folder, activation)
    model.check_embeds()
    score = model.score(answer_tokens(folder))
    weights = model.weights(head=False).tensors(stored)
    save_model(build_text_decoder(model.config, model.hidden, weights, score), directory)
    copy_companions(folder, directory)
