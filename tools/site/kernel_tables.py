"""The tables of products alone, for the page of results."""

from __future__ import annotations

from result_tables import Stored, number, origin, origins, table

_MCA = """\
Cycles of products per byte of weights and row, as llvm-mca predicts them from the instructions that
QEMU executes (`python -m benchmarks mca`); none of it ran on an ARM processor. Lower is better.
Inputs of llama.cpp have 8 bits. Its dot product is that of weights as a file stores them, and its
repacked kernel that of weights which it rearranges when it loads. LLVM takes the model of
Cortex-A57 for Cortex-A76."""
_MANY_ROWS = """\
Products of many rows alone, beside MLAS' int8 as `quantize_dynamic` makes it, in one run
(`python -m benchmarks many-rows`). The peak is what a loop of nothing but VPDPBUSD reached in that
run; inputs of 16 bits need twice as many instructions for a product, and their percentage counts
both. Times MLAS: median over rounds."""
_MCA_COLUMNS = {
    "tamiz, 16-bit inputs": ("tamiz_16_bits",),
    "tamiz, 8-bit inputs": ("tamiz_8_bits",),
    "llama.cpp, dot product": ("llama_cpp_dot",),
    "llama.cpp, repacked": ("llama_cpp_gemv", "llama_cpp_gemm"),
}


def mca_section(all_stored: list[Stored]) -> list[str]:
    """Predicted cycles of ARM's products, beside llama.cpp's."""
    rows = []
    for stored in all_stored:
        cases: dict[tuple[str, ...], dict[str, float]] = {}
        for row in stored.record["results"]:
            case = (row["processor"], row["level"], str(row["rows"]), row["form"])
            cases.setdefault(case, {})[row["name"]] = row["cycles_per_byte"]
        for key, found in cases.items():
            columns = [[found[n] for n in names if n in found] for names in _MCA_COLUMNS.values()]
            rows.append([*key, *(number(c[0]) if c else "" for c in columns)])
    head = ["processor", "level", "rows", "format", *_MCA_COLUMNS]
    return ["## ARM's products by llvm-mca", _MCA, table(head, rows), *origins(all_stored)]


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
