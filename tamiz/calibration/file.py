"""Calibration: what the inputs of the linear sites are on a text, and the file that holds it.

For every site the mean of x² (imatrix) and some of its inputs x, a uniform sample of the tokens.
Each token draws a number from what stands before it in its window; the tokens with the smallest
numbers are the sample; a site that keeps fewer has the first of those of a site that keeps more. So
merged files hold the sample of both texts together, whatever the order (bottom-k sampling), and two
runs on one text hold the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamiz.api.statistics import Statistics
from tamiz.evaluation.windows import Window, window_hash
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.files.tensor_file import write_tensors

#: Tokens of a window.
WINDOW = 512
#: Windows whose tokens a file keeps, for the gate of the whole model.
KEPT_WINDOWS = 16
VERSION = 3

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
        tokens: The first windows, int32 ``[n, WINDOW]``.
        priorities: The samples' random numbers, uint64 ``[S]``, ascending.
        places: Number of the window that each sample is of, int32 ``[S]``.
        sums: Σ x² by input, float64 ``[K]``.
        samples: The first samples by input, float32 ``[at most S, K]``.
        run_window: SHA-256 of the window that `runs` are of: the smallest.
        runs: By input, those of the last tokens of that window, as they follow each other,
            float32 ``[R, K]``, R at most the input's limit.
    """

    model: str
    inputs: dict[str, str]
    limits: dict[str, int]
    count: int = 0
    windows: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    priorities: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    places: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    sums: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    samples: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    run_window: str = ""
    runs: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Identifies what was measured."""
        seen = [self.model, self.limits, self.windows, self.origins]
        return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()

    def statistics(self, site: str) -> Statistics | None:
        """Statistics of one site; None where its input was not measured."""
        name = self.inputs.get(site)
        if name is None or not self.count:
            return None
        imatrix = (self.sums[name] / self.count).astype(np.float32)
        samples = self.samples[name]
        places = self.places[: len(samples)]
        order = np.argsort(places, kind="stable")
        origins = np.array(self.origins)[places[order]]
        return Statistics(self.count, imatrix, samples[order], origins, self.runs[name])

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
        one = Calibration(self.model, self.inputs, self.limits, len(ids), [digest])
        one.origins, one.tokens = [window.origin], [ids.tolist()]
        order = np.argsort(priorities, kind="stable")[: max(self.limits.values())]
        one.priorities, one.places = priorities[order], np.zeros(len(order), np.int32)
        one.run_window = digest
        for name, value in values.items():
            one.sums[name] = np.square(value, dtype=np.float64).sum(axis=0)
            one.samples[name] = value[order[: self.limits[name]]].astype(np.float32)
            one.runs[name] = value[-self.limits[name] :].astype(np.float32)
        self.merge(one)

    def merge(self, other: Calibration) -> None:
        """Adds what another calibration of the same model has seen."""
        both = (self, other)
        for name, total in other.sums.items():
            self.sums[name] = self.sums[name] + total if name in self.sums else total
            samples = [c.samples[name] for c in both if name in c.samples]
            numbers = [c.priorities[: len(c.samples.get(name, ()))] for c in both]
            order = np.argsort(np.concatenate(numbers), kind="stable")[: self.limits[name]]
            self.samples[name] = np.concatenate(samples)[order]
        priorities = np.concatenate([self.priorities, other.priorities])
        places = np.concatenate([self.places, other.places + np.int32(len(self.windows))])
        order = np.argsort(priorities, kind="stable")[: max(self.limits.values())]
        self.priorities, self.places = priorities[order], places[order]
        if not self.run_window or other.run_window < self.run_window:
            self.run_window, self.runs = other.run_window, other.runs
        self.count += other.count
        self.windows += other.windows
        self.origins += other.origins
        self.tokens = [*self.tokens, *other.tokens][:KEPT_WINDOWS]


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
        tensors[f"samples/{name}"] = calibration.samples[name]
        tensors[f"run/{name}"] = calibration.runs[name]
    about = {
        "version": VERSION,
        "model": calibration.model,
        "inputs": calibration.inputs,
        "limits": calibration.limits,
        "count": calibration.count,
        "windows": calibration.windows,
        "origins": calibration.origins,
        "run_window": calibration.run_window,
    }
    write_tensors(path, tensors, {"tamiz-calibration": json.dumps(about)})


def load(path: Path, bundle: Bundle) -> Calibration:
    """Reads a calibration of a dense bundle's model.

    Raises:
        TamizError: No readable calibration file, a truncated one, or one of another model.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            about = json.loads((file.metadata() or {})["tamiz-calibration"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        result = _read(about, tensors)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise TamizError(f"{path}: not a complete calibration file: {reason}") from error
    if result.model != fingerprint(bundle):
        raise TamizError(f"{path}: calibrates another model than {bundle.path}")
    return result


def _read(about: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Calibration:
    if about["version"] != VERSION:
        raise ValueError(f"version is {about['version']}, expected {VERSION}")
    names = ("model", "inputs", "limits", "count", "windows", "origins")
    result = Calibration(*(about[name] for name in names))
    result.tokens, result.run_window = tensors[_TOKENS].tolist(), about["run_window"]
    result.priorities, result.places = tensors[_PRIORITIES], tensors[_PLACES]
    for name in sorted(set(result.inputs.values())):
        total, samples = tensors[f"sum/{name}"], tensors[f"samples/{name}"]
        run = tensors[f"run/{name}"]
        kept = min(len(result.priorities), result.limits[name])
        if samples.shape != (kept, len(total)):
            raise ValueError(f"samples of {name} have shape {samples.shape}")
        if run.ndim != 2 or run.shape[1] != len(total):
            raise ValueError(f"consecutive inputs of {name} have shape {run.shape}")
        if not all(np.isfinite(part).all() for part in (total, samples, run)):
            raise ValueError(f"what was measured at {name} is not finite")
        result.sums[name], result.samples[name], result.runs[name] = total, samples, run
    return result


def calibrate(
    start: Calibration,
    windows: Iterable[Window],
    run: Callable[[Sequence[int]], Mapping[str, NDArray[np.float32]]],
    every: Callable[[Calibration, int], None],
) -> Calibration:
    """Runs the windows that `start` has not seen.

    Args:
        start: An empty calibration, or one that was interrupted.
        windows: The windows.
        run: Gives the inputs by name for a window's tokens; see `tamiz.survey.activations`.
        every: Called with what is there, and the windows done, after each.
    """
    for number, window in enumerate(windows, 1):
        if number > len(start.windows):
            start.add(window, run(window.tokens))
            every(start, number)
    return start
