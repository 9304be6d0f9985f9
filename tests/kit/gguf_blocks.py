"""Random blocks of GGUF tensors."""

import numpy as np
from gguf import dequantize
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from tamiz_ops.formats import FORMATS, Format, Scales

#: Where the fp16 factors of a block lie, in bytes.
HALVES = {
    "q4_0": [0],
    "q4_1": [0, 2],
    "q5_0": [0],
    "q5_1": [0, 2],
    "q8_0": [0],
    "iq4_nl": [0],
    "mxfp4": [],
    "q2_k": [80, 82],
    "q3_k": [108],
    "q4_k": [0, 2],
    "q5_k": [0, 2],
    "q6_k": [208],
    "iq4_xs": [0],
    "tq2_0": [64],
    "f16": [0],
    "bf16": [],
    "iq1_s": [0],
    "iq1_m": [],
    "iq2_xxs": [0],
    "iq2_xs": [0],
    "iq2_s": [0],
    "iq3_xxs": [0],
    "iq3_s": [0],
    "nvfp4": [],
}
#: Formats of GGUF types that gguf-py knows.
OF_GGUF = [each for each in FORMATS.values() if each.gguf in GGMLQuantizationType.__members__]
#: Zeros of both signs, the smallest and the largest subnormal, the largest finite, 1 and -1.
ODD = np.array([0, 0x8000, 1, 0x8001, 0x3FF, 0x7BFF, 0xFBFF, 0x3C00, 0xBC00], np.uint16)


def random_blocks(format, n, k, seed=0, odd=0.2, plain=False) -> np.ndarray:
    """Rows of blocks of any bytes but finite factors, uint8 [n, row bytes].

    Args:
        format: The format.
        n: Rows.
        k: Columns.
        seed: Of the random numbers.
        odd: Share of the factors that are `ODD`.
        plain: Factors from 0.001 to 0.02, as those of real models.
    """
    rng = np.random.default_rng([seed, n, k])
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[format.gguf]]
    blocks = rng.integers(0, 256, (n, k // block, block_bytes), dtype=np.uint8)

    def halves() -> np.ndarray:
        half = rng.integers(0, 1 << 16, (n, k // block), dtype=np.uint16)
        half = np.where(half & 0x7C00 == 0x7C00, half & 0x83FF, half)
        half = np.where(rng.random(half.shape) < odd, rng.choice(ODD, half.shape), half)
        if plain:
            half = rng.uniform(0.001, 0.02, half.shape).astype(np.float16).view(np.uint16)
        return half

    for at in HALVES[format.name]:
        half = halves()
        blocks[:, :, at], blocks[:, :, at + 1] = half & 255, half >> 8
    if format.name == "iq1_m":  # four bits in each of the last four words
        half = halves()
        for i in range(4):
            blocks[:, :, 49 + 2 * i] = blocks[:, :, 49 + 2 * i] & 15 | (half >> 4 * i & 15) << 4
    if format.name == "mxfp4":
        exponents = [119, 120, 121] if plain else [0, 1, 2, 100, 127, 252]
        blocks[:, :, 0] = rng.choice(exponents, (n, k // block))
    if format.name == "nvfp4" and plain:
        blocks[:, :, :4] = rng.integers(4, 24, (n, k // block, 4), dtype=np.uint8)
    if format.name == "bf16":
        high = blocks[:, :, 1] & 0x80 | rng.integers(56, 64, (n, k // block), dtype=np.uint8)
        blocks[:, :, 1] = high if plain else np.where(high & 127 == 127, 0, high)
    return blocks.reshape(n, -1)


def random_factors(format: Format, n: int) -> np.ndarray | None:
    """A factor of each output, as formats have them that hold one; they have all 24 bits."""
    if format.scales is not Scales.SMALL_FLOAT:
        return None
    return np.random.default_rng(n).uniform(0.5, 2, n).astype(np.float32)


def random_signs(n: int, k: int, seed: int = 0) -> np.ndarray:
    """Rows of Q1_0: an fp16 factor and 128 signs a block."""
    rng = np.random.default_rng([seed, n, k])
    factors = rng.uniform(0.01, 0.1, (n, k // 128, 1)).astype(np.float16)
    signs = rng.integers(0, 256, (n, k // 128, 16), dtype=np.uint8)
    return np.concatenate([factors.view(np.uint8), signs], axis=2).reshape(n, -1)


def block_values(data: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Values of rows of blocks; of Q1_0, which gguf-py knows by name alone, as ggml has them.

    dequantize_row_q1_0: the factor where a bit is set, else less than 0, lowest bits first.
    """
    if kind.name != "Q1_0":
        return np.asarray(dequantize(data, kind))
    blocks = data.reshape(len(data), -1, 18)
    factors = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)
    signs = np.unpackbits(blocks[..., 2:], axis=2, bitorder="little")
    return np.where(signs, factors, -factors).reshape(len(data), -1)
