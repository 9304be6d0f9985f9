"""Takes any ONNX model through export and build, beside plain ONNX Runtime."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import tamiz_ops
from kit.equal_passes import assert_close
from kit.rounding_noise import NOISE, NOISE_OF_INPUTS, Spread
from tamiz.building.build import Options, build
from tamiz.files.errors import TamizError
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz.reporting.report import Report
from tamiz.survey.export import export

#: No gate of the whole model: none has a tokenizer.
OPTIONS = Options(max_dppl=None, min_cosine=None)
#: Of outputs relative to their largest number, where nothing lossy was applied: onnxruntime's
#: optimiser moves casts, so that float16 is rounded elsewhere.
ROUNDING, HALF_ROUNDING = 1e-4, 5e-3
#: Smallest cosine of an output of a lossy build, of outputs of so many numbers.
ALIKE, FEW = 0.5, 64


class Refused(Exception):
    """Plain ONNX Runtime does not run the model on the input."""


def expected(
    model: onnx.ModelProto, inputs: Mapping[str, Any], optimised: bool = True
) -> dict[str, Any]:
    """What plain ONNX Runtime gives, by the name of the output.

    Raises:
        Refused: It does not run it.
    """
    try:
        return run(model.SerializeToString(), inputs, optimised=optimised)
    except Exception as error:
        raise Refused(str(error)) from error


def run(
    model: bytes | str, inputs: Mapping[str, Any], *, ops: bool = False, optimised: bool = True
) -> dict[str, Any]:
    """The outputs of a model or file.

    Args:
        model: A serialised model, or the path of a file.
        inputs: Its inputs.
        ops: Whether it has ops of tamiz.
        optimised: Whether ONNX Runtime optimises it; its fusion of norms loses a dimension where
            constants raise the rank.
    """
    options = ort.SessionOptions()
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if ops:
        tamiz_ops.register(options)
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def scratch() -> Path:
    """A new folder in memory where the system has such."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="tamiz-", dir=memory if memory.is_dir() else None))


def through_build(
    model: onnx.ModelProto,
    inputs: Mapping[str, Any],
    plugins: Plugins,
    builds: Sequence[Mapping[str, Any]] = ({},),
) -> str | None:
    """Exports a model, builds it with each of some sets of techniques, and compares all outputs.

    Returns:
        The sentence of a refusal; None where everything went well.

    Raises:
        Refused: Plain ONNX Runtime does not run the model.
        AssertionError: An output is missing or wrong.
    """
    reference = expected(model, inputs)
    folder = scratch()
    try:
        onnx.save(model, folder / "model.onnx")
        dense = folder / "dense"
        export(str(folder / "model.onnx"), dense, plugins)
        for number, chosen in enumerate(builds):
            built = folder / f"built.{number}"
            choices = choose(plugins.techniques(), chosen)
            report = build(dense, built, choices, plugins, OPTIONS)
            found = run(str(built / "model.onnx"), inputs, ops=True)
            _compare(report, found, reference, lambda size: Spread.of(model, inputs, size))
    except TamizError as error:
        if " is broken" in str(error):
            raise
        return str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return None


def _compare(
    report: Report,
    found: Mapping[str, Any],
    reference: Mapping[str, Any],
    spread: Callable[[float], Spread],
) -> None:
    """Compares all outputs: within rounding where every weight is stored exactly, else loosely."""
    assert list(found) == list(reference)
    applied = any(site.applied for site in report.sites.values())
    for name, value in reference.items():
        if not report.lossy:
            half = np.asarray(value).dtype == np.float16 if not isinstance(value, list) else False
            tolerance = HALF_ROUNDING if half else ROUNDING
            try:
                assert_close(found[name], value, tolerance, name)
            except AssertionError:
                noise = NOISE_OF_INPUTS if applied else NOISE
                if isinstance(value, list) or not spread(noise).explains(
                    name, found[name], value, tolerance
                ):
                    raise
            continue
        a, b = (np.asarray(v) for v in (found[name], value))
        assert (a.shape, a.dtype) == (b.shape, b.dtype), name
        if b.dtype.kind == "f" and b.size >= FEW and np.isfinite(b).all():
            a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
            norms = np.linalg.norm(a) * np.linalg.norm(b)
            assert norms == 0 or a @ b >= ALIKE * norms, f"{name}: cosine {a @ b / norms:.3f}"
