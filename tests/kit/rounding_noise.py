"""How far rounding moves each number of a model's outputs, measured with plain ONNX Runtime.

Where a sum cancels, or a number lies at a place where an op jumps (a comparison, a rounded number,
the place of the largest), rounding moves an output by much more than its own size. So that neither
a fixed tolerance has to be wide nor such graphs be left out, noise of the size of rounding is added
to every value inside of the model, and every number of the outputs may differ by what the noise
does to it. A wrong weight, orientation or order differs in numbers that noise leaves alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

import tamiz_ops

#: Rounding of one value, relative to its largest number: of float32, and where products with packed
#: weights round their inputs to 16 bits.
NOISE, NOISE_OF_INPUTS = 5e-7, 2e-5
#: Runs with noise, and how many times what they move a number is still rounding.
_RUNS, _MARGIN = 24, 3.0
#: Noise of float16 relative to the largest number of a value, whatever that of float32 is.
_HALF = 1e-3
_TYPES = ("tensor(float)", "tensor(float16)")
#: Ops whose numbers are not rounded: noise on a whole number would move what reads its sign, in all
#: places and in every run.
_WHOLE = ("Ceil", "Floor", "Round", "Sign")


@dataclass(frozen=True)
class Spread:
    """What rounding may do to each output.

    Attributes:
        largest: By the name of an output, the largest difference of each of its numbers between
            two runs, times a margin; NaN where it is not a tensor of numbers.
    """

    largest: Mapping[str, Any]

    @classmethod
    def of(cls, model: onnx.ModelProto, inputs: Mapping[str, Any], noise: float) -> Spread:
        """Runs a model with noise.

        Args:
            model: The model; it may have ops of tamiz.
            inputs: Its inputs.
            noise: Of float32 values, relative to the largest number of each.
        """
        names = [output.name for output in model.graph.output]
        values = _floats(model, inputs)
        session, plain = _session(_with_noise(model, values)), _session(model)
        expected = plain.run(names, dict(inputs))
        moved: dict[str, Any] = {
            n: np.zeros(np.shape(v)) for n, v in zip(names, expected, strict=True)
        }
        rng = np.random.default_rng(0)
        for _ in range(_RUNS):
            drawn = {_noise_of(name): _drawn(rng, value, noise) for name, value in values.items()}
            found = session.run(names, {**inputs, **drawn})
            for name, a, b in zip(names, found, expected, strict=True):
                a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
                with np.errstate(invalid="ignore"):
                    moved[name] = np.maximum(moved[name], np.nan_to_num(abs(a - b), nan=np.inf))
        return cls({name: _MARGIN * value for name, value in moved.items()})

    def explains(self, name: str, found: Any, expected: Any, tolerance: float) -> bool:
        """Whether an output differs by no more than rounding does.

        Args:
            name: Of the output.
            found: What a build gives.
            expected: What the model gives.
            tolerance: What every number may differ by, relative to the largest.
        """
        a, b = np.asarray(found), np.asarray(expected)
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return False
        a, b = a.astype(np.float64), b.astype(np.float64)
        largest = np.abs(b[np.isfinite(b)]).max(initial=0.0)
        with np.errstate(invalid="ignore"):
            within = abs(a - b) <= tolerance * largest + self.largest[name]
        return bool((within | (a == b) | (np.isnan(a) & np.isnan(b))).all())

    def blinds(self, name: str, expected: Any) -> bool:
        """Whether noise moves most numbers so far that a wrong output would not be seen."""
        b = np.asarray(expected, np.float64)
        largest = np.abs(b[np.isfinite(b)]).max(initial=0.0)
        return bool(np.mean(self.largest[name] >= 0.3 * largest) > 0.5)


def _with_noise(model: onnx.ModelProto, values: Mapping[str, Any]) -> onnx.ModelProto:
    """A copy of a model that adds an input to every float that its nodes compute."""
    noisy = onnx.ModelProto()
    noisy.CopyFrom(model)
    nodes = list(noisy.graph.node)
    del noisy.graph.node[:]
    for node in nodes:
        added = []
        for index, name in enumerate(node.output):
            if name in values:
                node.output[index] = raw = f"{name}/exact"
                added.append(helper.make_node("Add", [raw, _noise_of(name)], [name], name=raw))
        noisy.graph.node.extend([node, *added])
    for name, value in values.items():
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        info = helper.make_tensor_value_info(_noise_of(name), kind, value.shape)
        noisy.graph.input.append(info)
    return noisy


def _noise_of(name: str) -> str:
    return f"{name}/noise"


def _drawn(rng: np.random.Generator, value: np.ndarray, noise: float) -> np.ndarray:
    """Noise for a value, relative to its largest number."""
    size = noise if value.dtype == np.float32 else max(noise, _HALF)
    largest = np.abs(value[np.isfinite(value)]).max(initial=0).astype(np.float64)
    return np.asarray(size * largest * rng.standard_normal(value.shape)).astype(value.dtype)


def _floats(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The floats that nodes compute and round, by name."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    nodes = [node for node in probe.graph.node if node.op_type not in ("Constant", *_WHOLE)]
    made = [name for node in nodes for name in node.output if name]
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    session = _session(probe)
    found = [value.name for value in session.get_outputs() if value.type in _TYPES]
    return dict(zip(found, session.run(found, dict(inputs)), strict=True))


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    tamiz_ops.register(options)
    return ort.InferenceSession(model.SerializeToString(), options)
