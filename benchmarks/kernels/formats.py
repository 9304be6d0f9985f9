"""Products with every weight format, interleaved with int4 (q4_1): weights read per second.

A graph is a row of BlockMatMul nodes with weights of their own, so that no cache holds them: what a
decode step meets. The graphs of a format and of int4 take turns; the table gives medians, of all
threads together. GB are of packed weights; `of int4` compares the time per weight.

    python -m benchmarks formats [--threads 2] [--rows 1,8,512] [--formats q4_k] [--json FILE]
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.common import record
from benchmarks.common.graphs import session
from tamiz_ops import formats

K, N = 2048, 5632
BYTES = 320 << 20
SECONDS = 2.0  # a case, at least


def packed_weight(format, rng):
    """Random quants with scales like those of models."""
    blocks = format.blocks(K)
    halves = {"fp16": (0.001, 0.02), "units": None}
    groups = (N, blocks * format.block // format.group)
    if format.is_float:
        weight = rng.standard_normal((N, K), np.float32)
        half = weight.astype(np.float16).view(np.uint16)
        quants = half if format.name == "f16" else (weight.view(np.uint32) >> 16).astype(np.uint16)
        return formats.pack_parts(format, formats.Parts(quants))

    def scales():
        if format.scales.bits == 0:
            return None
        if format.scales.value[0] in halves and format.scales.bits == 16:
            return rng.uniform(*halves["fp16"], groups).astype(np.float16)
        low, high = (118, 122) if format.scales is formats.Scales.EXPONENT else (1, 16)
        kind = np.int8 if format.scales is formats.Scales.SIGNED_BYTE else np.uint8
        return rng.integers(low, high, groups).astype(kind)

    def factors(wanted, columns):
        return rng.uniform(0.0001, 0.002, (N, columns)).astype(np.float16) if wanted else None

    quant = np.uint32 if isinstance(format, formats.Grid) else np.uint8
    large, units = format.block == formats.SUPER_BLOCK, format.scales is formats.Scales.UNITS
    parts = formats.Parts(
        rng.integers(0, 1 << format.bits, (N, K // format.step), dtype=quant),
        scales(),
        scales() if format.minimum else None,
        factors(large or units, blocks if large else 1),
        factors(large and format.minimum, blocks),
    )
    return formats.pack_parts(format, parts)


def made_session(format, threads, folder, copies=None):
    weight = packed_weight(format, np.random.default_rng(0))
    copies = copies or max(2, BYTES // weight.nbytes)
    attributes = {"format": format.name, "n": N, "k": K}
    folder = folder / format.name
    folder.mkdir()
    made = session("BlockMatMul", "tamiz", attributes, [weight], copies, threads, folder)
    return made, copies, weight.nbytes


def seconds_each(sessions, x):
    """Median seconds of a run of each session, in turns."""
    taken: list[list[float]] = [[] for _ in sessions]
    for each in sessions:
        each.run(None, {"x": x})
    begin = time.perf_counter()
    while time.perf_counter() - begin < SECONDS * len(sessions) or len(taken[0]) < 3:
        for each, times in zip(sessions, taken, strict=True):
            start = time.perf_counter()
            each.run(None, {"x": x})
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in taken]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="1,4,8,512")
    parser.add_argument("--formats", default=",".join(formats.FORMATS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    print(f"{N} outputs, {K} inputs, {options.threads} threads, {BYTES >> 20} MB of weights")
    print(f"{'format':>9} {'rows':>5} {'GB/s':>7} {'int4 GB/s':>10} {'of int4':>8}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reference = formats.FORMATS["q4_1"]
        int4, int4_copies, int4_bytes = made_session(reference, options.threads, folder)
        for format in (formats.find_format(name) for name in options.formats.split(",")):
            if format is reference:
                continue
            made, copies, weight_bytes = made_session(format, options.threads, folder)
            for rows in map(int, options.rows.split(",")):
                x = np.random.default_rng(1).standard_normal((rows, K)).astype(np.float32)
                taken, int4_taken = seconds_each([made, int4], x)
                each, int4_each = taken / copies, int4_taken / int4_copies
                row = {
                    "format": format.name,
                    "rows": rows,
                    "gb_per_s": weight_bytes / each / 1e9,
                    "int4_gb_per_s": int4_bytes / int4_each / 1e9,
                    "of_int4": int4_each / each,
                }
                found.append(row)
                print(
                    f"{format.name:>9} {rows:>5} {row['gb_per_s']:>7.1f} "
                    f"{row['int4_gb_per_s']:>10.1f} {row['of_int4']:>8.2f}",
                    flush=True,
                )
            (folder / format.name / "BlockMatMul.data").unlink()
            del made
    if options.json:
        record.write(options.json, "formats", found, settings=vars(options))
