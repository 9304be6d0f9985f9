"""The table of steps that skip zeros of a ReLU."""

from __future__ import annotations

from result_tables import Stored, number, origins, table

_ZEROS = """\
A part of one decode step of a made decoder of 1B or 7B shape, with ReLU² and random int4 weights
(`python -m benchmarks zeros`): `relu2` without a gate, `gated` with one. `down` skips the inputs of
down that are 0, `up` also the outputs of up that the gate makes 0. The bits are equal. A ratio
under 1 is slower than the whole step, and the last column is the ratio of the bytes that are read.
Times are medians by the clock, in `zeros-1` of the processor's time beside many other programs.
Another program disturbed rows whose whole step is slower than that of other rows of its file."""
_ZEROS_COLUMNS = {
    "activations left": ("density",),
    "whole, ms": ("whole_ms",),
    "down, times as fast": ("down_ratio",),
    "down and up, times as fast": ("chosen_ratio",),
    "bytes allow": ("chosen_bytes_ratio", "down_bytes_ratio"),
}
#: Columns that the benchmark wrote before it had the clock's.
_OLD = {"whole_ms": "whole_cpu_ms"} | {f"{k}_ratio": f"{k}_cpu_ratio" for k in ("down", "chosen")}


def zeros_section(all_stored: list[Stored]) -> list[str]:
    """Decode steps that skip the zeros of a ReLU; a made model a row."""
    rows = []
    for stored in all_stored:
        for case, found in stored.record["results"].items():
            if not isinstance(found, dict):
                continue
            cells = []
            for keys in _ZEROS_COLUMNS.values():
                names = [name for key in keys for name in (_OLD.get(key), key)]
                key = next((name for name in names if name in found), None)
                cells.append("" if key is None else number(found[key]))
            rows.append([f"{stored.name}: {case.rstrip(':')}", *cells])
    head = ["step", *_ZEROS_COLUMNS]
    return ["## Zeros of a ReLU", _ZEROS, table(head, rows), *origins(all_stored)]
