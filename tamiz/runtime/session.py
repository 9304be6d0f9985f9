"""Sessions of onnxruntime for bundles.

Imported by the processes whose memory is measured: numpy and onnxruntime, nothing else that is
heavy.
"""

from __future__ import annotations

import logging

import onnxruntime as ort

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.files.onnx_versions import graph_inputs, onnx_versions
from tamiz.interface.metadata import DOMAIN
from tamiz.interface.states import PAST
from tamiz.runtime.large_pages import load_constants
from tamiz.runtime.opset import check_opset
from tamiz.system.cores import limited_cores
from tamiz.system.memory import free_memory

_log = logging.getLogger(__name__)

#: Microseconds that idle threads of onnxruntime 1.26 and later spin before they sleep. Ops of tamiz
#: count on it where another program shares the cores (ort_ops/src/engine/program_team.cc). The many
#: ops of an encoder follow one another sooner; steps of a decoder do not.
_SPIN, _SPIN_OF_ENCODERS = "session.intra_op.spin_duration_us", "20"


def load_session(
    bundle: Bundle, threads: int | None = None
) -> tuple[ort.InferenceSession, list[ort.OrtValue]]:
    """Makes a bundle's session.

    Args:
        bundle: The bundle.
        threads: Threads that work on one run; None leaves it to onnxruntime (physical cores).

    Returns:
        The session, and constants that must live as long as it does.

    Raises:
        TamizError: onnxruntime is too old, or refuses the model.
    """
    oldest = bundle.manifest.min_onnxruntime
    if _version(ort.__version__) < _version(oldest):
        raise TamizError(
            f"{bundle.path}: found onnxruntime {ort.__version__}, expected {oldest} or newer"
        )
    _warn_of_size(bundle)
    options = session_options(threads)
    if not any(name.startswith(PAST) for name in graph_inputs(bundle.model)):
        options.add_session_config_entry(_SPIN, _SPIN_OF_ENCODERS)
    constants: list[ort.OrtValue] = []
    if bundle.manifest.kind == "built":
        check_opset(bundle.model)
        constants += load_constants(bundle.path, bundle.external, options)
    try:
        if has_ops(bundle):
            import tamiz_ops

            tamiz_ops.register(options)
        session = ort.InferenceSession(
            str(bundle.model), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's exceptions share no base class
        reason = str(error).strip().splitlines()[0]
        raise TamizError(f"{bundle.model}: onnxruntime cannot load it: {reason}") from error
    return session, constants


def _warn_of_size(bundle: Bundle) -> None:
    """Warns of weights that do not fit in memory: they are mapped, and read when they are used."""
    size, free = sum(tensor.length for tensor in bundle.external), free_memory()
    if size > free:
        _log.warning(
            "%s: the weights take %.1f GB, and %.1f GB of memory are free: they stay in the file,"
            " and steps wait for the disk; try more memory, or a file with fewer bits per weight",
            *(bundle.path, size / 1e9, free / 1e9),
        )


def has_ops(bundle: Bundle) -> bool:
    """Whether the model has ops of the domain `tamiz`."""
    known = bundle.manifest.kind == "built" or bundle.manifest.weights == "stored"
    return known or DOMAIN in onnx_versions(bundle.model).opsets


def session_options(threads: int | None) -> ort.SessionOptions:
    """Options of every session of tamiz: one run at a time, little memory kept."""
    options = ort.SessionOptions()
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = threads or limited_cores() or 0
    # A pattern is kept for every new shape, and the mask's shape is new in every step.
    options.enable_mem_pattern = False
    options.log_severity_level = 4  # errors are raised, so they are not logged as well
    return options


def _version(text: str) -> tuple[int, ...]:
    """Major and minor number."""
    return tuple(int(part) for part in text.split(".")[:2])
