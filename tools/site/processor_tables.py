"""The tables of levels of instructions, predicted cycles and quotas of processor time."""

from __future__ import annotations

from result_tables import PROMPT, Stored, number, origins, table

_LEVELS = """\
One bundle in the source format on each level of instructions, forced by `TAMIZ_ISA`, and llama.cpp
compiled for the same level (`python -m benchmarks levels`). All take turns in one run."""

_MCA = """\
Cycles of products per byte of weights and row, as llvm-mca predicts them from the instructions that
QEMU executes (`python -m benchmarks mca`); none of it ran on an ARM processor. Lower is better.
Inputs of llama.cpp have 8 bits. Its dot product is that of weights as a file stores them, and its
repacked kernel that of weights which it rearranges when it loads. LLVM takes the model of
Cortex-A57 for Cortex-A76."""

_MCA_COLUMNS = {
    "tamiz, 16-bit inputs": ("tamiz_16_bits",),
    "tamiz, 8-bit inputs": ("tamiz_8_bits",),
    "llama.cpp, dot product": ("llama_cpp_dot",),
    "llama.cpp, repacked": ("llama_cpp_gemv", "llama_cpp_gemm"),
}

_QUOTA = """\
A cgroup that may use one processor's time, on a machine with two (`python -m benchmarks quota`).
Periods have 100 ms, and a group that has used up its quota is stopped until the next begins."""


def levels_section(all_stored: list[Stored]) -> list[str]:
    """Speed by level of instructions."""
    rows = []
    for stored in all_stored:
        for level, found in stored.record["results"]["levels"].items():
            cells = [stored.measured, level]
            for key in ("decode_tok_s", "prefill_tok_s"):
                for one in ("tamiz", "times avx2", "times llama.cpp"):
                    speeds = found.get(one, {}).get(key, {})
                    length = PROMPT if key == "prefill_tok_s" else min(speeds, key=int, default="")
                    cells.append(number(speeds[length]) if length in speeds else "")
            rows.append(cells)
    head = ["model", "level"]
    for kind in ("decode", f"prefill of {PROMPT}"):
        head += [f"{kind}, tok/s", "times AVX2", "times llama.cpp"]
    return ["## Levels of instructions", _LEVELS, table(head, rows), *origins(all_stored)]


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


def quota_section(all_stored: list[Stored]) -> list[str]:
    """Speed in a quota of processor time by number of threads."""
    rows = []
    for stored in all_stored:
        results = stored.record["results"]
        base, *_ = results["engines"]
        for name, found in results["engines"].items():
            quota = f"{results['quota']:g}" if "periods" in found else ""
            cells = [stored.measured, quota, name]
            for key in ("decode_tok_s", "prefill_tok_s"):
                speeds, times = found["speeds"][key], found[f"times {base}"][key]
                length = PROMPT if key == "prefill_tok_s" else min(speeds, key=int)
                cells += [number(speeds[length]), number(times[length])]
            share = 100 * found["stopped"] / found["periods"] if "periods" in found else None
            rows.append([*cells, "" if share is None else number(share)])
    head = ["model", "quota, cores", "threads", "decode, tok/s", "times no quota"]
    head += [f"prefill of {PROMPT}, tok/s", "times no quota", "periods stopped, %"]
    return ["## Quotas of processor time", _QUOTA, table(head, rows), *origins(all_stored)]
