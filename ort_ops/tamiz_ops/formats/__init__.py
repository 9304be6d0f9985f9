"""Weight formats, declared once: what a packed weight holds, how long it is, and its values.

`FORMATS` names every format. `pack_blocks` turns the blocks of a GGUF tensor into tiles for the
kernels, `dequantize` turns tiles into float32, with the bits of `gguf.dequantize`, and `quantize`
fits floats to a format.
"""

from tamiz_ops.formats.declared import (
    FORMATS,
    GROUP,
    SUPER_BLOCK,
    TILE,
    Affine,
    Format,
    Grid,
    Scales,
    affine_format,
    find_format,
    gguf_format,
    int_format,
)
from tamiz_ops.formats.factor import Factor, feedback_factor
from tamiz_ops.formats.feedback import quantize_with_feedback
from tamiz_ops.formats.fitting import FITTED, quantizable, quantize
from tamiz_ops.formats.packing import dequantize, pack_blocks, pack_parts, unpack_parts
from tamiz_ops.formats.parts import Parts

__all__ = [
    "FITTED",
    "FORMATS",
    "GROUP",
    "SUPER_BLOCK",
    "TILE",
    "Affine",
    "Factor",
    "Format",
    "Grid",
    "Parts",
    "Scales",
    "affine_format",
    "dequantize",
    "feedback_factor",
    "find_format",
    "gguf_format",
    "int_format",
    "pack_blocks",
    "pack_parts",
    "quantizable",
    "quantize",
    "quantize_with_feedback",
    "unpack_parts",
]
