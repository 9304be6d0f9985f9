"""Every weight format: bits of an element, scales, minima, and the bytes of a tile.

A weight [N outputs, K inputs] is stored in tiles of 16 outputs. Activations are quantised in groups
of 32 inputs. A block is the inputs that share an fp16 factor: one group, or a super-block of 256
inputs with a small integer scale for each 32 or 16 of them.

    w = scale * value + minimum            value = quant - offset, or codebook[quant]

where, in a super-block, scale = d * s and minimum = -dmin * m, with integers s and m; of nvfp4 s is
a number of 8 bits with an exponent, and d is fp32.

A `Grid` has a codebook of vectors: one quant stands for 4 or 8 inputs.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from functools import cache

GROUP = 32  #: inputs that share the scale of the activations
TILE = 16  #: outputs of a tile
SUPER_BLOCK = 256  #: inputs of a super-block


class Scales(enum.Enum):
    """How the scales of a format are stored: a name and the bits of one scale."""

    HALF = ("fp16", 16)  #: and an fp16 minimum where the format has one
    EXPONENT = ("exponent", 8)  #: a byte e; scale = 2^(e - 128)
    UNITS = ("units", 8)  #: bytes that count the fp16 unit of their output
    SIX = ("six", 6)  #: unsigned; in super-blocks, as all below
    SIX_SIGNED = ("six signed", 6)  #: 32 too large
    SIGNED_BYTE = ("signed byte", 8)
    FOUR = ("four", 4)  #: unsigned
    ODD = ("odd", 4)  #: t, of s = 2 t + 1
    SMALL_FLOAT = ("e4m3", 8)  #: of 4 bits of exponent and 3 of mantissa, without a sign
    NONE = ("none", 0)  #: d alone
    FLOAT = ("float", 0)  #: the elements are floats, nothing scales them
    AFFINE = ("affine", 0)  #: of whole blocks of inputs, after all quants of a tile; see `Affine`

    @property
    def bits(self) -> int:
        """Bits of one scale, without the factors of its block."""
        return self.value[1]


@dataclass(frozen=True)
class Format:
    """One weight format.

    Attributes:
        name: Its name in bundles; a GGUF type's name in lower case where they hold the same.
        planes: Bits of each plane of the quants, low bits first; their sum is the element's bits.
            16 stands for a whole float.
        scales: How scales are stored.
        group: Inputs that share a scale: 32, 16, or a whole super-block.
        block: Inputs of a block: 32, or 256 for a super-block. K is padded to whole blocks.
        offset: What is subtracted from a quant.
        codebook: Value of each quant, in place of subtracting; None where values are linear.
        minimum: Whether every scale comes with a minimum.
        gguf: The type of GGUF tensors that the format holds; None where no GGUF type is the same.
        work: Time to multiply a weight that lies in the cache, where that of q4_1 is 1
            (`benchmarks/kernels/work.py`, AMD EPYC with AVX-512).
        step: Inputs that a quant stands for: 1, or the 4 or 8 of a vector.
    """

    name: str
    planes: tuple[int, ...]
    scales: Scales = Scales.HALF
    group: int = GROUP
    block: int = GROUP
    offset: int = 0
    codebook: tuple[int, ...] | None = None
    minimum: bool = False
    gguf: str | None = None
    work: float = 1.0
    step: int = 1

    @property
    def bits(self) -> int:
        """Bits of an element, without scales."""
        return sum(self.planes)

    @property
    def is_float(self) -> bool:
        """Whether elements are floats that need no scale."""
        return self.scales is Scales.FLOAT

    @property
    def quant_bytes(self) -> int:
        """Bytes of the quants of one block of one output."""
        return self.block * self.bits // 8

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of one output; what a unit of an output takes is not counted."""
        kinds = 1 + self.minimum
        factors = kinds if self.block == SUPER_BLOCK else 0
        scales = self.block // self.group * kinds * self.scales.bits
        return self.quant_bytes + scales // 8 + self.factor_bytes * factors

    @property
    def factor_bytes(self) -> int:
        """Bytes of the factor of a super-block: of fp16, or of fp32."""
        return 4 if self.scales is Scales.SMALL_FLOAT else 2

    def blocks(self, k: int) -> int:
        """Blocks of one output with `k` inputs."""
        return -(-k // self.block)

    def row_bytes(self, k: int) -> int:
        """Bytes of one output with `k` inputs, padded to whole blocks."""
        unit = 2 if self.scales is Scales.UNITS else 0
        return self.blocks(k) * self.block_bytes + unit

    def tile_bytes(self, k: int) -> int:
        """Bytes of one tile with `k` inputs."""
        return TILE * self.row_bytes(k)

    def packed_shape(self, n: int, k: int) -> tuple[int, int]:
        """Shape of the packed uint8 tensor: tiles and bytes of a tile."""
        return -(-n // TILE), self.tile_bytes(k)

    def bytes(self, n: int, k: int) -> int:
        """Bytes of the packed weight, padding included."""
        tiles, tile_bytes = self.packed_shape(n, k)
        return tiles * tile_bytes


@dataclass(frozen=True)
class Affine(Format):
    """A format of other tools' graphs, `affine_format`: w = scale (quant - zero point).

    `group` is how many inputs share a scale; 0 is all of an output. `minimum` says whether a scale
    comes with a zero point; else that is 2^(bits - 1).

    Attributes:
        halves: Whether scales are fp16, or else float32.
        float_zeros: Whether zero points are float32, or else bytes.
    """

    halves: bool = False
    float_zeros: bool = False

    def scales_of(self, k: int) -> int:
        """Scales of one output with `k` inputs, padded to whole groups of activations."""
        return -(-(-(-k // GROUP) * GROUP) // self.group) if self.group else 1

    def row_bytes(self, k: int) -> int:
        """Bytes of one output with `k` inputs, padded to whole blocks."""
        zero = (4 if self.float_zeros else 1) if self.minimum else 0
        factors = (2 if self.halves else 4) + zero
        return self.blocks(k) * GROUP * self.bits // 8 + self.scales_of(k) * factors


@dataclass(frozen=True)
class Grid(Format):
    """A format whose codebook has vectors of `step` inputs: ggml's IQ1, IQ2 and IQ3.

        w = scale * value,  value = ± codebook[quant]  or  codebook[quant] ± 1

    with the vectors of `tamiz_ops.formats.grids`. A quant is the number of a vector, and above it a
    bit for the sign of each input; without `signs` one bit, which is set where 1 is subtracted.

    Attributes:
        number_bits: Bits of the number of a vector.
        high: Bits that tiles store of a quant above its lowest 8, without signs of inputs.
        signs: Whether each input has a sign.
        unit: What scales are multiplied with.
    """

    number_bits: int = 8
    high: int = 0
    signs: bool = True
    unit: float = 1.0

    @property
    def bits(self) -> int:
        """Bits of a quant."""
        return self.number_bits + (self.step if self.signs else 1)

    @property
    def quant_bytes(self) -> int:
        """Bytes of the quants of one block of one output."""
        return self.block // self.step * (8 + self.high + self.signs * self.step) // 8


_NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_MICROSCALING = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # doubled


def _grid(
    name: str,
    group: int,
    step: int,
    number_bits: int,
    high: int,
    *,
    unit: float,
    signs: bool = True,
    work: float,
) -> Grid:
    return Grid(
        name,
        (),
        Scales.ODD,
        group,
        SUPER_BLOCK,
        gguf=name.upper(),
        work=work,
        step=step,
        number_bits=number_bits,
        high=high,
        signs=signs,
        unit=unit,
    )


_ALL: tuple[Format, ...] = (
    Format("q4_0", (4,), offset=8, gguf="Q4_0"),
    Format("q4_1", (4,), minimum=True, gguf="Q4_1"),
    Format("q4_units", (4,), Scales.UNITS, minimum=True),
    Format("q5_0", (4, 1), offset=16, gguf="Q5_0", work=1.2),
    Format("q5_1", (4, 1), minimum=True, gguf="Q5_1", work=1.25),
    Format("q8_0", (8,), offset=128, gguf="Q8_0"),
    Format("iq4_nl", (4,), codebook=_NON_LINEAR, gguf="IQ4_NL", work=1.1),
    Format("mxfp4", (4,), Scales.EXPONENT, codebook=_MICROSCALING, gguf="MXFP4", work=1.1),
    Format("q2_k", (2,), Scales.FOUR, 16, SUPER_BLOCK, minimum=True, gguf="Q2_K", work=1.3),
    Format("q3_k", (2, 1), Scales.SIX_SIGNED, 16, SUPER_BLOCK, offset=4, gguf="Q3_K", work=1.5),
    Format("q4_k", (4,), Scales.SIX, 32, SUPER_BLOCK, minimum=True, gguf="Q4_K", work=1.05),
    Format("q5_k", (4, 1), Scales.SIX, 32, SUPER_BLOCK, minimum=True, gguf="Q5_K", work=1.4),
    Format("q6_k", (4, 2), Scales.SIGNED_BYTE, 16, SUPER_BLOCK, offset=32, gguf="Q6_K", work=1.4),
    Format(
        "iq4_xs",
        (4,),
        Scales.SIX_SIGNED,
        32,
        SUPER_BLOCK,
        codebook=_NON_LINEAR,
        gguf="IQ4_XS",
        work=1.1,
    ),
    Format("tq2_0", (2,), Scales.NONE, SUPER_BLOCK, SUPER_BLOCK, offset=1, gguf="TQ2_0", work=0.9),
    Format(
        "nvfp4",
        (4,),
        Scales.SMALL_FLOAT,
        16,
        SUPER_BLOCK,
        codebook=_MICROSCALING,
        gguf="NVFP4",
        work=1.2,
    ),
    Format("f16", (16,), Scales.FLOAT, gguf="F16", work=2.5),
    Format("bf16", (16,), Scales.FLOAT, gguf="BF16", work=2.5),
    _grid("iq1_s", 32, 8, 11, 4, unit=1 / 8, signs=False, work=5.1),
    _grid("iq1_m", 16, 8, 11, 4, unit=1 / 8, signs=False, work=5.4),
    _grid("iq2_xxs", 32, 8, 8, 0, unit=1 / 8, work=1.9),
    _grid("iq2_xs", 16, 8, 9, 2, unit=1 / 8, work=2.8),
    _grid("iq2_s", 16, 8, 10, 2, unit=1 / 8, work=3.7),
    _grid("iq3_xxs", 32, 4, 8, 0, unit=1 / 4, work=2.7),
    _grid("iq3_s", 32, 4, 9, 1, unit=1, work=3.9),
)

#: Every format by name.
FORMATS = {format.name: format for format in _ALL}

#: The affine format that holds the values of Q1_0.
_OF_SIGNS = "affine2_128h"
#: Of NVFP4 whose rows are no whole super-blocks.
_OF_NARROW_NVFP4 = "affine8_16"

#: affine, bits, _, inputs that share a scale, h for scales of fp16, z or f for zero points.
_AFFINE = re.compile(r"affine([248])_(16|32|64|128|256|512|1024|row)(h?)([zf]?)")
#: Time to multiply a weight of an affine format, by bits, as `Format.work`.
_AFFINE_WORK = {2: 1.1, 4: 1.05, 8: 1.05}

_OF_GGUF = {format.gguf: format for format in _ALL if format.gguf} | {"TQ1_0": FORMATS["tq2_0"]}


def find_format(name: str) -> Format:
    """The format called `name`.

    Raises:
        ValueError: No format has this name.
    """
    if name in FORMATS:
        return FORMATS[name]
    if not _AFFINE.fullmatch(name):
        known = ", ".join(FORMATS)
        raise ValueError(
            f"format is {name!r}, expected one of: {known}, or an affine format such as affine4_32z"
        )
    return _affine(name)


@cache
def _affine(name: str) -> Affine:
    found = _AFFINE.fullmatch(name)
    assert found is not None
    bits, block, halves, zero = found.groups()
    return Affine(
        name,
        (int(bits),),
        Scales.AFFINE,
        group=0 if block == "row" else int(block),
        offset=1 << (int(bits) - 1),
        minimum=bool(zero),
        work=_AFFINE_WORK[int(bits)],
        halves=bool(halves),
        float_zeros=zero == "f",
    )


def affine_format(
    bits: int, block: int, *, halves: bool = False, zeros: bool = False, float_zeros: bool = False
) -> Affine:
    """The format that holds w = scale (quant - zero point) of other tools' graphs.

    Args:
        bits: 2, 4 or 8.
        block: Inputs that share a scale, a power of two from 16 to 1024; 0 is all of an output.
        halves: Whether scales are fp16, or else float32.
        zeros: Whether there are zero points, or else that of all is 2^(bits - 1).
        float_zeros: Whether zero points are float32, or else bytes.

    Raises:
        ValueError: No format has these bits or this block.
    """
    zero = ("f" if float_zeros else "z") if zeros else ""
    name = f"affine{bits}_{block or 'row'}{'h' * halves}{zero}"
    if not _AFFINE.fullmatch(name):
        raise ValueError(
            f"bits is {bits} and block is {block}, expected 2, 4 or 8 bits, and 0 or a power of "
            "two from 16 to 1024"
        )
    return _affine(name)


def gguf_format(type_name: str, k: int = 0) -> Format | None:
    """The format that holds GGUF tensors of a type such as "Q4_K"; None where there is none.

    Args:
        type_name: The type.
        k: Inputs, where it matters: blocks of NVFP4 are shorter than those of its format.
    """
    if type_name == "NVFP4" and k % SUPER_BLOCK:
        return _affine(_OF_NARROW_NVFP4)
    return _affine(_OF_SIGNS) if type_name == "Q1_0" else _OF_GGUF.get(type_name)


def int_format(bits: int, scale_bits: int = 16) -> Format:
    """The format that techniques fit to float weights: int4 or int8 in groups of 32.

    Args:
        bits: 4 or 8.
        scale_bits: 16, or 8 with 4 bits.

    Raises:
        ValueError: An argument has another value.
    """
    if bits not in (4, 8):
        raise ValueError(f"bits is {bits}, expected 4 or 8")
    if scale_bits not in ((8, 16) if bits == 4 else (16,)):
        raise ValueError(f"scale_bits is {scale_bits}, expected 16" + (bits == 4) * " or 8")
    if bits == 8:
        return FORMATS["q8_0"]
    return FORMATS["q4_1" if scale_bits == 16 else "q4_units"]
