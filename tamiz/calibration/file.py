"""Calibration: what the inputs of the linear sites are on a text, and the file that holds it.

For every site the mean of x² (imatrix) and some of its inputs x, a uniform sample of the tokens.
Each token draws a number from the tokens before it in its window; the tokens with the smallest
numbers are the sample; a site that keeps fewer has the first of those of a site that keeps more. So
merged files hold the sample of both texts together, whatever the order (bottom-k sampling), and two
runs on one text hold the same.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from tamiz.api.statistics import Statistics
from tamiz.calibration.kept import fair_ranks, held_out
from tamiz.calibration.rows import Rows, scale_count
from tamiz.evaluation.windows import Window, window_hash
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError, printable
from tamiz.files.tensor_file import write_tensors
from tamiz.files.text_file import check_characters, check_regular

#: Tokens of a window.
WINDOW = 512
#: Most inputs that follow each other which are kept of a site.
RUN = 256
#: Windows whose tokens a file keeps, for predictions of losses and the gate of the whole model.
KEPT_WINDOWS = 32
VERSION = 5
#: Files without weights of the windows, which are all 1. Until version 4 samples were floats.
_UNWEIGHTED = 3
#: Key of the metadata in a calibration's file.
KIND = "tamiz-calibration"

_TOKENS = "tokens"
_PRIORITIES, _PLACES = "priorities", "places"


@dataclass
class Calibration:
    """Statistics of a model on a text.

    Attributes:
        model: SHA-256 that identifies the dense model; see `fingerprint`.
        inputs: Name of the input by site id; sites that read the same input share it.
        limits: Most samples that are kept, by input.
        count: Tokens that were seen.
        windows: SHA-256 of every window that was seen, in order.
        origins: The name of the text that each of them is of.
        weights: How much each of them counts.
        kept: Numbers of the windows whose tokens are kept; see `tamiz.calibration.kept`.
        tokens: The tokens of these, int32 ``[n, WINDOW]``.
        priorities: The samples' random numbers, uint64 ``[S]``, ascending.
        places: Number of the window that each sample is of, int32 ``[S]``.
        mass: Tokens that were seen, each as often as its window counts.
        sums: Σ x² by input over the same, float64 ``[K]``.
        samples: The first samples by input, at most S of K numbers.
        run_window: SHA-256 of the window that `runs` are of: the smallest.
        runs: By input, those of the last tokens of that window, as they follow each other,
            float32 ``[R, K]``, R at most the input's limit and `RUN`.
        imatrix: SHA-256 of the imatrix that `sums` are of; '' if they are of the text.
    """

    model: str
    inputs: dict[str, str]
    limits: dict[str, int]
    count: int = 0
    windows: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    priorities: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    places: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    mass: float = 0.0
    sums: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    samples: dict[str, Rows] = field(default_factory=dict)
    run_window: str = ""
    runs: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    imatrix: str = ""
    _ordered: dict[str, ref[NDArray[np.float32]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def digest(self) -> str:
        """Identifies what was measured."""
        seen = [self.model, self.limits, self.windows, self.origins, self.weights, self.imatrix]
        return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()

    @property
    def fitting(self) -> list[list[int]]:
        """Tokens of the kept windows that are not held out; predictions read them."""
        numbers = self._held_out()
        return [tokens for i, tokens in enumerate(self.tokens) if i not in numbers]

    @property
    def held_out(self) -> list[list[int]]:
        """Tokens of the windows that what is built is measured on: no fit sees their samples."""
        return [self.tokens[i] for i in self._held_out()]

    def check_held_out(self) -> list[list[int]]:
        """The held-out windows.

        Raises:
            TamizError: The calibration keeps none.
        """
        if not self.held_out:
            raise TamizError(
                f"the calibration keeps {len(self.tokens)} windows of {WINDOW} tokens, expected at "
                "least 2: one to predict losses, the others to measure them"
            )
        return self.held_out

    def _held_out(self) -> list[int]:
        return held_out([self.origins[number] for number in self.kept], len(self.windows))

    def statistics(self, site: str) -> Statistics | None:
        """Statistics of one site; None where its input was not measured.

        The samples are of fitting windows, not of held-out ones.
        """
        name = self.inputs.get(site)
        if name is None or not self.count:
            return None
        imatrix = (self.sums[name] / self.mass).astype(np.float32)
        places = self.places[: len(self.samples[name])]
        order = np.argsort(places, kind="stable")
        order = order[~np.isin(places[order], [self.kept[i] for i in self._held_out()])]
        origins = np.array(self.origins, np.str_)[places[order]]
        samples = self._in_order(name, order)
        return Statistics(self.count, imatrix, samples, origins, self.runs[name])

    def _in_order(self, name: str, order: NDArray[np.intp]) -> NDArray[np.float32]:
        """Samples of an input; the same array as long as one of its sites holds it."""
        kept = self._ordered.get(name)
        samples = None if kept is None else kept()
        if samples is None:
            samples = self.samples[name].at(order).floats()
            self._ordered[name] = ref(samples)
        return samples

    def add(self, window: Window, values: Mapping[str, NDArray[np.float32]]) -> None:
        """Adds one window.

        Args:
            window: The window of T tokens.
            values: The inputs ``[T, K]`` by name.
        """
        ids = np.asarray(window.tokens, np.int32)
        digest = window_hash(window.tokens)
        seed = int(digest[:16], 16)
        priorities = np.random.Generator(np.random.Philox(seed)).integers(
            0, 1 << 63, len(ids), dtype=np.uint64
        )
        if window.weight != 1:
            share = priorities / float(1 << 63)
            drawn = -np.expm1(np.log1p(-share) / window.weight)  # the least of `weight` numbers
            priorities = (drawn * float(1 << 63)).astype(np.uint64)
        one = Calibration(self.model, self.inputs, self.limits, len(ids), [digest])
        one.origins, one.weights, one.kept = [window.origin], [window.weight], [0]
        one.tokens, one.mass = [ids.tolist()], window.weight * len(ids)
        order = np.argsort(priorities, kind="stable")[: max(self.limits.values())]
        one.priorities, one.places = priorities[order], np.zeros(len(order), np.int32)
        one.run_window = digest
        for name, value in values.items():
            one.sums[name] = window.weight * np.square(value, dtype=np.float64).sum(axis=0)
            one.samples[name] = Rows.of(value[order[: self.limits[name]]].astype(np.float32))
            one.runs[name] = value[-min(RUN, self.limits[name]) :].astype(np.float32)
        self.merge(one)

    def merge(self, other: Calibration) -> None:
        """Adds what another calibration of the same model has seen."""
        both = (self, other)
        self._ordered.clear()
        for name, total in other.sums.items():
            self.sums[name] = self.sums[name] + total if name in self.sums else total
            samples = [c.samples[name] for c in both if name in c.samples]
            numbers = [c.priorities[: len(c.samples.get(name, ()))] for c in both]
            order = np.argsort(np.concatenate(numbers), kind="stable")[: self.limits[name]]
            self.samples[name] = Rows.joined(samples).at(order)
        priorities = np.concatenate([self.priorities, other.priorities])
        places = np.concatenate([self.places, other.places + np.int32(len(self.windows))])
        order = np.argsort(priorities, kind="stable")[: max(self.limits.values())]
        self.priorities, self.places = priorities[order], places[order]
        if not self.run_window or other.run_window < self.run_window:
            self.run_window, self.runs = other.run_window, other.runs
        kept = dict(zip(self.kept, self.tokens, strict=True))
        more = zip(other.kept, other.tokens, strict=True)
        kept |= {len(self.windows) + number: tokens for number, tokens in more}
        self.count += other.count
        self.mass += other.mass
        self.windows += other.windows
        self.origins += other.origins
        self.weights += other.weights
        ranks = fair_ranks(self.origins, self.weights)
        self.kept = sorted(kept, key=lambda number: (ranks[number], number))[:KEPT_WINDOWS]
        self.tokens = [kept[number] for number in self.kept]


def fingerprint(bundle: Bundle) -> str:
    """Identifies the model of a dense bundle."""
    files = {
        name: file.sha256
        for name, file in bundle.manifest.files.items()
        if name.startswith("model.onnx") or name.endswith((".onnx", ".data"))
    }
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def save(calibration: Calibration, path: Path) -> None:
    """Writes a calibration; see `tamiz.files.tensor_file.write_tensors`."""
    tensors: dict[str, NDArray[Any]] = {
        _TOKENS: np.array(calibration.tokens, np.int32).reshape(len(calibration.tokens), -1),
        _PRIORITIES: calibration.priorities,
        _PLACES: calibration.places,
    }
    for name, total in calibration.sums.items():
        tensors[f"sum/{name}"] = total
        samples = calibration.samples[name]
        tensors[f"samples/{name}"], tensors[f"scales/{name}"] = samples.quants, samples.scales
        tensors[f"run/{name}"] = calibration.runs[name]
    about = {
        "version": VERSION,
        "model": calibration.model,
        "inputs": calibration.inputs,
        "limits": calibration.limits,
        "count": calibration.count,
        "windows": calibration.windows,
        "origins": calibration.origins,
        "weights": calibration.weights,
        "kept": calibration.kept,
        "mass": calibration.mass,
        "run_window": calibration.run_window,
    }
    write_tensors(path, tensors, KIND, about)


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
    except (OSError, SafetensorError, KeyError, ValueError, RecursionError) as error:
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
    result.priorities = _tensor(tensors, _PRIORITIES, np.uint64, 1)
    rises = bool(np.all(result.priorities[1:] >= result.priorities[:-1]))
    _expect(rises, _PRIORITIES, "ascending numbers", "others")
    result.places = _tensor(tensors, _PLACES, np.int32, 1)
    places, samples = len(result.places), len(result.priorities)
    _expect(places == samples, _PLACES, f"{samples} of them", places)
    _check_range(result.places, _PLACES, len(windows))
    for name in sorted(used):
        _read_input(result, tensors, name)
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
