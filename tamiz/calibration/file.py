"""The file that holds a calibration; every field is checked when it is read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamiz.calibration.calibration import Calibration, fingerprint
from tamiz.calibration.rows import Rows, scale_count
from tamiz.evaluation.windows import Window
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError, printable
from tamiz.files.tensor_file import write_tensors
from tamiz.files.text_file import check_characters, check_regular
from tamiz.survey.experts import ExpertSums

VERSION = 7
#: Files without experts.
_WITHOUT_EXPERTS = 6
#: Files without windows that judge.
_MEASURED_ONLY = 5
#: Files without weights of the windows, which are all 1. Until version 4 samples were floats.
_UNWEIGHTED = 3
#: Key of the metadata in a calibration's file.
KIND = "tamiz-calibration"

_TOKENS, _JUDGING = "tokens", "judging"
_PRIORITIES, _PLACES = "priorities", "places"


def save(calibration: Calibration, path: Path) -> None:
    """Writes a calibration; see `tamiz.files.tensor_file.write_tensors`."""
    tensors: dict[str, NDArray[Any]] = {
        _TOKENS: _rows_of(calibration.tokens),
        _JUDGING: _rows_of([window.tokens for window in calibration.judging]),
        _PRIORITIES: calibration.priorities,
        _PLACES: calibration.places,
    }
    for name, total in calibration.sums.items():
        tensors[f"sum/{name}"] = total
        samples = calibration.samples[name]
        tensors[f"samples/{name}"], tensors[f"scales/{name}"] = samples.quants, samples.scales
        tensors[f"run/{name}"] = calibration.runs[name]
    for name, found in calibration.experts.items():
        tensors[f"expert counts/{name}"] = found.counts
        tensors[f"expert sums/{name}"] = found.sums
    about = {
        "version": VERSION,
        "model": calibration.model,
        "inputs": calibration.inputs,
        "limits": calibration.limits,
        "expert_inputs": calibration.expert_inputs,
        "count": calibration.count,
        "windows": calibration.windows,
        "origins": calibration.origins,
        "weights": calibration.weights,
        "kept": calibration.kept,
        "mass": calibration.mass,
        "run_window": calibration.run_window,
        "judging_origins": [window.origin for window in calibration.judging],
        "judging_weights": [window.weight for window in calibration.judging],
    }
    write_tensors(path, tensors, KIND, about)


def _rows_of(windows: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """Windows of one length as rows."""
    return np.array(windows, np.int32).reshape(len(windows), -1 if windows else 0)


#: What is raised for types that NumPy lacks, such as F8_E4M3.
_OTHER = (AttributeError, TypeError)


def load(path: Path, bundle: Bundle) -> Calibration:
    """Reads a calibration of a dense bundle's model.

    Raises:
        TamizError: No readable calibration file, a truncated one, or one of another model.
    """
    from safetensors import SafetensorError, safe_open

    check_regular(path)
    try:
        with safe_open(path, "np") as file:
            about = json.loads((file.metadata() or {})[KIND])
            check_characters(about)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        result = _read(about, tensors, _vocabulary(bundle))
    except (OSError, SafetensorError, LookupError, ValueError, RecursionError, *_OTHER) as error:
        reason = f"{type(error).__name__}: {error}"
        raise TamizError(f"{path}: not a complete calibration file: {reason}") from error
    if result.model != fingerprint(bundle):
        raise TamizError(f"{path}: calibrates another model than {bundle.path}")
    return result


def is_calibration(path: Path) -> bool:
    """Whether a file was written by `save`, of whatever model and however damaged inside."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            return KIND in (file.metadata() or {})
    except (OSError, SafetensorError):
        return False


def _vocabulary(bundle: Bundle) -> int:
    """Number of tokens of the model; a large one where its configuration does not say."""
    size = bundle.json("config.json").get("vocab_size")
    return size if isinstance(size, int) and size > 0 else 1 << 31


def _read(about: Any, tensors: Mapping[str, NDArray[Any]], vocabulary: int) -> Calibration:
    """The calibration that a file holds, every field checked.

    Raises:
        ValueError: A field is of another kind, or does not fit the others.
        KeyError: One is missing.
    """
    _expect(isinstance(about, dict), "the description", "an object", about)
    version = about["version"]
    readable = type(version) is int and _UNWEIGHTED <= version <= VERSION
    _expect(readable, "version", str(VERSION), version)
    inputs, limits = about["inputs"], about["limits"]
    _expect(_is_object(inputs, str), "inputs", "an object of names", inputs)
    _expect(_is_object(limits, int), "limits", "an object of counts", limits)
    used = set(inputs.values())
    _expect(
        set(limits) == used and all(n > 0 for n in limits.values()), "limits", "inputs'", limits
    )
    for name in ("windows", "origins"):
        right = isinstance(about[name], list) and all(type(item) is str for item in about[name])
        _expect(right, name, "a list of strings", about[name])
    windows, origins = about["windows"], about["origins"]
    _expect(len(origins) == len(windows), "origins", f"{len(windows)} names", len(origins))
    for name, kind in (("model", str), ("run_window", str), ("count", int)):
        _expect(type(about[name]) is kind, name, kind.__name__, about[name])
    _expect(0 <= about["count"] < 1 << 53, "count", "a count", about["count"])
    result = Calibration(about["model"], inputs, limits, about["count"], windows, origins)
    result.run_window = about["run_window"]
    tokens = _tensor(tensors, _TOKENS, np.int32, 2)
    if version == _UNWEIGHTED:
        about = {**about, "weights": [1.0] * len(windows), "mass": float(about["count"])}
        about["kept"] = list(range(len(tokens)))
    _read_weights(result, about, len(tokens))
    _check_range(tokens, _TOKENS, vocabulary)
    result.tokens = tokens.tolist()
    if version > _MEASURED_ONLY:
        _read_judging(result, about, tensors, vocabulary)
    result.priorities = _tensor(tensors, _PRIORITIES, np.uint64, 1)
    rises = bool(np.all(result.priorities[1:] >= result.priorities[:-1]))
    _expect(rises, _PRIORITIES, "ascending numbers", "others")
    result.places = _tensor(tensors, _PLACES, np.int32, 1)
    places, samples = len(result.places), len(result.priorities)
    _expect(places == samples, _PLACES, f"{samples} of them", places)
    _check_range(result.places, _PLACES, len(windows))
    for name in sorted(used):
        _read_input(result, tensors, name)
    if version > _WITHOUT_EXPERTS:
        _read_experts(result, about, tensors)
    return result


def _read_weights(result: Calibration, about: Mapping[str, Any], tokens: int) -> None:
    """Takes how much the windows count, and which are kept, into `result`."""
    weights, kept, mass = about["weights"], about["kept"], about["mass"]
    windows = len(result.windows)
    right = isinstance(weights, list) and len(weights) == windows and all(map(_is_weight, weights))
    _expect(right, "weights", f"{windows} positive numbers", weights)
    right = isinstance(kept, list) and all(type(n) is int and 0 <= n < windows for n in kept)
    _expect(right and len(set(kept)) == len(kept), "kept", "numbers of windows", kept)
    _expect(len(kept) == tokens, _TOKENS, f"{len(kept)} windows", tokens)
    _expect(not windows or _is_weight(mass), "mass", "a positive number", mass)
    result.weights, result.kept, result.mass = weights, kept, mass


def _read_judging(
    result: Calibration, about: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], most: int
) -> None:
    """Takes the windows that judge into `result`."""
    origins, weights = about["judging_origins"], about["judging_weights"]
    tokens = _tensor(tensors, _JUDGING, np.int32, 2)
    _check_range(tokens, _JUDGING, most)
    right = isinstance(origins, list) and all(type(item) is str for item in origins)
    _expect(right and len(origins) == len(tokens), _JUDGING, f"{len(tokens)} names", origins)
    right = (
        isinstance(weights, list) and len(weights) == len(tokens) and all(map(_is_weight, weights))
    )
    _expect(right, "judging_weights", f"{len(tokens)} positive numbers", weights)
    rows = zip(origins, tokens.tolist(), weights, strict=True)
    result.judging = [Window(origin, row, weight) for origin, row, weight in rows]


def _is_weight(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0


def _read_input(result: Calibration, tensors: Mapping[str, NDArray[Any]], name: str) -> None:
    """Takes what was measured at one input into `result`."""
    total = _tensor(tensors, f"sum/{name}", np.float64, 1)
    run = _tensor(tensors, f"run/{name}", np.float32, 2)
    if tensors[f"samples/{name}"].dtype == np.float32:  # as version 4 had them
        samples = Rows.of(_tensor(tensors, f"samples/{name}", np.float32, 2))
    else:
        quants = _tensor(tensors, f"samples/{name}", np.int8, 2)
        samples = Rows(quants, _tensor(tensors, f"scales/{name}", np.float32, 2))
    kept, inputs = min(len(result.priorities), result.limits[name]), len(total)
    shapes = samples.quants.shape, samples.scales.shape
    if shapes != ((kept, inputs), (kept, scale_count(inputs))):
        raise ValueError(f"samples of {name} have shapes {shapes[0]} and {shapes[1]}")
    if run.shape[1] != inputs:
        raise ValueError(f"consecutive inputs of {name} have shape {run.shape}")
    if not all(np.isfinite(part).all() for part in (total, samples.scales, run)):
        raise ValueError(f"what was measured at {name} is not finite")
    result.sums[name], result.samples[name], result.runs[name] = total, samples, run


def _read_experts(
    result: Calibration, about: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
) -> None:
    """Takes what was measured at the inputs of experts into `result`."""
    result.expert_inputs = about["expert_inputs"]
    right = _is_object(result.expert_inputs, str)
    _expect(right, "expert_inputs", "an object of names", result.expert_inputs)
    for name in sorted(set(result.expert_inputs.values())) if result.count else ():
        counts = _tensor(tensors, f"expert counts/{name}", np.float64, 1)
        sums = _tensor(tensors, f"expert sums/{name}", np.float64, 2)
        if len(counts) != len(sums):
            raise ValueError(f"experts at {name}: {len(counts)} counts and {len(sums)} sums")
        if not all(np.isfinite(part).all() and (part >= 0).all() for part in (counts, sums)):
            raise ValueError(f"experts at {name}: a count or a sum is not finite, or negative")
        result.experts[name] = ExpertSums(counts, sums)


def _expect(right: bool, field: str, expected: str, found: Any) -> None:
    if not right:
        raise ValueError(f"{field} is {printable(repr(found), 100)}, expected {expected}")


def _is_object(value: Any, kind: type) -> bool:
    """Whether it is a JSON object whose values are all of one kind."""
    return isinstance(value, dict) and all(type(entry) is kind for entry in value.values())


def _tensor(
    tensors: Mapping[str, NDArray[Any]], name: str, kind: type[np.generic], rank: int
) -> NDArray[Any]:
    tensor = tensors[name]
    if tensor.dtype != kind or tensor.ndim != rank:
        found = f"{tensor.dtype} of rank {tensor.ndim}"
        raise ValueError(f"{name} is {found}, expected {np.dtype(kind)} of rank {rank}")
    return tensor


def _check_range(numbers: NDArray[np.int32], name: str, end: int) -> None:
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < end:
        found = f"{numbers.min()} to {numbers.max()}"
        raise ValueError(f"{name} holds {found}, expected 0 to {end - 1}")
