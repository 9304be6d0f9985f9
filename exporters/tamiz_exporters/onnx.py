"""Export of an ONNX model that exists already, as optimum-cli writes it."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import onnx_ir as ir

from tamiz.api import KEY_VALUES, MODEL, OF_DECODERS, PAST, TamizError, read_json
from tamiz_exporters.companions import CONFIG, ONNX_FOLDER, copy_companions
from tamiz_exporters.external_data import load_model, save_model
from tamiz_exporters.genai import GENAI_CONFIG, model_file
from tamiz_exporters.half_graph import computes_in_halves, widen
from tamiz_exporters.merged_decoder import is_decoder, take_apart
from tamiz_exporters.stored_weights import store_weights

_log = logging.getLogger(__name__)
#: Files of weights that another exporter reads.
_OTHER_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
#: From this version of the format on, an initializer need not be an input, and a run may set one
#: that is.
_FREE_INITIALIZERS = 4


def accepts(source: str) -> bool:
    """Whether `source` is an .onnx path, or a folder that holds a model, perhaps in ``onnx/``.

    Of a folder with weights of another kind, too, only ``model.onnx`` counts.
    """
    folder = Path(source)
    if source.lower().endswith(".onnx"):
        return True
    found = _graphs(folder)
    named = any(path.name == MODEL for path in found) or (folder / GENAI_CONFIG).is_file()
    others = (path for kind in _OTHER_WEIGHTS for path in folder.glob(kind))
    return named or bool(found and not any(others))


def export(source: str, directory: Path, dtype: str = "stored", file: str | None = None) -> str:
    """Writes the dense bundle's files, weights rewritten into one aligned data file.

    Args:
        source: An .onnx path or a folder that holds graphs, perhaps in ``onnx/``.
        directory: An existing, empty directory.
        dtype: ``stored`` keeps weights of 16 bits and fewer as they are, where a format holds
            them; ``float32`` makes floats of them.
        file: Which graph of a folder; None for the one that ``genai_config.json`` names, for
            ``model.onnx``, or for the only one.

    Returns:
        The path of the .onnx file.

    Raises:
        TamizError: If onnxruntime does not load the model, its external data is not where it should
            be, or the folder does not say which of its graphs is meant.
    """
    path = _chosen(Path(source), file)
    model = load_model(path)
    take_apart(path, model)
    if not model.graph.outputs:
        raise TamizError(f"{path}: found no outputs, expected at least one")
    _free_initializers(model)
    _keep_weights(model, path, dtype)
    copy_companions(path.parent, directory)
    if is_decoder(model):
        _complete_caches(model, directory)
    else:
        _warn_of_states(path, model)
    save_model(model, directory)
    _check_loads(path, directory / MODEL)
    return str(path)


def _keep_weights(model: ir.Model, path: Path, dtype: str) -> None:
    """Lets products read weights of 16 bits and fewer, in float32 where the graph does not."""
    halves = computes_in_halves(model)
    if halves and model.functions:  # which may say types
        return
    changed = store_weights(model, path, unpack=dtype == "float32")
    if halves and (changed or is_decoder(model)):
        widen(model)


def _free_initializers(model: ir.Model) -> None:
    """Takes initializers off the inputs of a model of an old format, where no run may set them."""
    if (model.ir_version or _FREE_INITIALIZERS) >= _FREE_INITIALIZERS:
        return
    model.ir_version = _FREE_INITIALIZERS
    for value in [value for value in model.graph.inputs if value.is_initializer()]:
        model.graph.inputs.remove(value)


def _chosen(source: Path, file: str | None) -> Path:
    """The graph that is meant.

    Raises:
        TamizError: There is none, or several.
    """
    if not source.is_dir():
        if file is not None:
            raise TamizError(f"{source}: found --file {file}, expected none for a file")
        if not source.is_file():
            raise TamizError(f"{source}: no such file, expected an ONNX model")
        return source
    found = _graphs(source)
    shown = ", ".join(path.relative_to(source).as_posix() for path in found) or "none"
    wanted = [file] if file is not None else [model_file(source), MODEL]
    for name in filter(None, wanted):
        for path in (source / name, source / ONNX_FOLDER / name):
            if path in found:
                return path
        if name != MODEL or file is not None:
            raise TamizError(f"{source}: holds no graph {name}, expected one of: {shown}")
    if len(found) == 1:
        return found[0]
    raise TamizError(
        f"{source}: found {len(found)} graphs ({shown}), expected one named {MODEL}; choose one "
        "with --file"
    )


def _graphs(folder: Path) -> list[Path]:
    """The ONNX files of a folder, and of the folder ``onnx`` in it."""
    if not folder.is_dir():
        return []
    return sorted([*folder.glob("*.onnx"), *(folder / ONNX_FOLDER).glob("*.onnx")])


def _complete_caches(model: ir.Model, directory: Path) -> None:
    """Gives the caches of a decoder the sizes that only the config says."""
    heads, size = _cache_sizes(directory / CONFIG)
    ports = [*model.graph.inputs, *model.graph.outputs]
    for value in ports:
        cache = re.fullmatch(r"(past_key_values|present)\.\d+\.(key|value)", value.name or "")
        if cache and value.shape is not None and len(value.shape) == 4:
            dims = list(value.shape)
            for axis, size_of_axis in ((1, heads), (3, size)):
                dims[axis] = (
                    dims[axis] if isinstance(dims[axis], int) else size_of_axis or dims[axis]
                )
            value.shape = ir.Shape(dims)


def _warn_of_states(path: Path, model: ir.Model) -> None:
    """Says that a graph with caches is no decoder that `tamiz run` runs."""
    required = [value.name or "" for value in model.graph.inputs if not value.is_initializer()]
    others = [name for name in required if name not in OF_DECODERS and not name.startswith(PAST)]
    if others and len(others) < len(required) and any(n.startswith(KEY_VALUES) for n in required):
        _log.warning(
            "%s: requires the input %s, which 'tamiz run' cannot give; it is kept as a graph that "
            "onnxruntime runs",
            path,
            others[0],
        )


def _cache_sizes(config: Path) -> tuple[int | None, int | None]:
    """Heads of the cache and their size by ``config.json``; None where it does not say."""
    if not config.is_file():
        return None, None
    fields = read_json(config)
    heads, hidden = _count(fields, "num_attention_heads"), _count(fields, "hidden_size")
    size = hidden // heads if heads and hidden else None
    return _count(fields, "num_key_value_heads") or heads, _count(fields, "head_dim") or size


def _count(config: dict[str, Any], key: str) -> int | None:
    number = config.get(key)
    return number if type(number) is int and number > 0 else None


def _check_loads(path: Path, written: Path) -> None:
    """Refuses what onnxruntime, which runs the model in the end, refuses.

    ONNX's own checker is another judge: it does not know the ops that onnxruntime has in ONNX's
    domain, such as SimplifiedLayerNormalization.
    """
    import onnxruntime as ort

    import tamiz_ops

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    tamiz_ops.register(options)
    try:
        ort.InferenceSession(str(written), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # a class of its own for every status
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        shown = reason.replace(str(written), str(path))
        raise TamizError(f"{path}: onnxruntime does not load it: {shown}") from error
