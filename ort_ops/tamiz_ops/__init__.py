"""Custom ops of tamiz for ONNX Runtime on CPUs, and the same ops on NumPy arrays."""

from tamiz_ops._native import cpu, schemas
from tamiz_ops.channels import (
    pack_channels,
    pack_channels_in_units,
    unpack_channels,
    unpack_channels_in_units,
)
from tamiz_ops.declarations import OpMetric, Ports, op_metrics, ports
from tamiz_ops.deltas import (
    DELTA_PADDING,
    hash_weights,
    pack_deltas,
    quantize_groups,
    unpack_deltas,
)
from tamiz_ops.library import (
    library_path,
    metrics,
    op_counts,
    register,
    reset_metrics,
    summary,
)
from tamiz_ops.pack import (
    dequantize,
    pack_int4,
    pack_int4_in_units,
    pack_int8,
    pack_ternary,
    unpack_int4,
    unpack_int4_in_units,
    unpack_int8,
    unpack_ternary,
)
from tamiz_ops.records import (
    pack_records,
    pack_records_in_units,
    unpack_records,
    unpack_records_in_units,
)
from tamiz_ops.run import run
from tamiz_ops.seedlm import fit_seedlm, unpack_seedlm
from tamiz_ops.signs import dequantize_signs, pack_sign_words, pack_signs, unpack_sign_words

__version__ = "0.1.0"

__all__ = [
    "DELTA_PADDING",
    "OpMetric",
    "Ports",
    "cpu",
    "dequantize",
    "dequantize_signs",
    "fit_seedlm",
    "hash_weights",
    "library_path",
    "metrics",
    "op_counts",
    "op_metrics",
    "pack_channels",
    "pack_channels_in_units",
    "pack_deltas",
    "pack_int4",
    "pack_int4_in_units",
    "pack_int8",
    "pack_records",
    "pack_records_in_units",
    "pack_sign_words",
    "pack_signs",
    "pack_ternary",
    "ports",
    "quantize_groups",
    "register",
    "reset_metrics",
    "run",
    "schemas",
    "summary",
    "unpack_channels",
    "unpack_channels_in_units",
    "unpack_deltas",
    "unpack_int4",
    "unpack_int4_in_units",
    "unpack_int8",
    "unpack_records",
    "unpack_records_in_units",
    "unpack_seedlm",
    "unpack_sign_words",
    "unpack_ternary",
]
