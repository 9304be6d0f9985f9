"""The table of products alone, for the page of results."""

from __future__ import annotations

from result_tables import Stored, number, origin, table

_MANY_ROWS = """\
Products of many rows alone, beside MLAS' int8 as `quantize_dynamic` makes it, in one run
(`python -m benchmarks many-rows`). The peak is what a loop of nothing but VPDPBUSD reached in that
run; inputs of 16 bits need twice as many instructions for a product, and their percentage counts
both. Times MLAS: median over rounds."""


def many_rows_section(all_stored: list[Stored]) -> list[str]:
    """How near products of many rows come to what the processor can multiply."""
    head = ["inputs × outputs", "product", "ms", "10⁹ operations a second", "% of the peak"]
    head += ["times MLAS int8"]
    parts = ["## Products of many rows", _MANY_ROWS]
    for stored in all_stored:
        rows, peaks = [], []
        for shape, measured in stored.record["results"].items():
            peaks.append(measured["peak_gop_s"])
            for name, row in measured["sessions"].items():
                percent = row["peak_percent"]
                cells = [number(row["ms"]), number(row["gop_s"])]
                cells += ["" if percent is None else number(percent), number(row["speed"][0])]
                rows.append([shape.replace("x", " × "), name, *cells])
        settings = stored.record["settings"]
        note = f"{settings['rows']:,} rows, {settings['threads']} threads."
        if all(peaks):
            note += (
                f" Peak: {number(min(peaks))} to {number(max(peaks))} × 10⁹ operations a second."
            )
        title = f"### {settings['shapes']}, threads: {settings['threads']}"
        parts += [title, table(head, rows), f"{note} {origin(stored)}"]
    return parts
