"""Cycles of ARM's products by llvm-mca, against llama.cpp's kernels of the same format.

    python -m benchmarks mca [--llama-cpp FOLDER] [--json FILE]

No ARM processor is needed: QEMU writes down every instruction that a product executes, and llvm-mca
schedules them on the model of a processor. Caches always hit and branches are always predicted. The
cycles of some inputs less those of half of them leave out what happens once.

llama.cpp's products are measured in both ways that it has: dot products of single rows, and the
kernels for weights that it repacks when it loads. Inputs of llama.cpp have 8 bits; those of tamiz
have 16 by default, and 8 with activation-bits.

Needs Debian's packages g++-aarch64-linux-gnu, qemu-user and llvm-19 or newer.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from benchmarks.common import record
from tamiz.files.errors import TamizError

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "arm_loops"
#: Flags and definitions of a level, as ort_ops/CMakeLists.txt has them.
LEVELS = {
    "dotprod": ("-march=armv8.2-a+dotprod", "-DTAMIZ_DOT", "-DTAMIZ_DOT_SIGNED"),
    "i8mm": ("-march=armv8.2-a+dotprod+i8mm", "-DTAMIZ_DOT", "-DTAMIZ_I8MM"),
}
#: Processors that have a level. LLVM has no model of Cortex-A76 of its own: it takes Cortex-A57's.
PROCESSORS = {
    "dotprod": ("neoverse-n1", "neoverse-v2", "cortex-a76"),
    "i8mm": ("neoverse-v2",),
}
#: Bytes of 32 weights.
FORMATS = {"q4_0": 18, "q4_k": 18}
OUTPUTS, ROWS = 64, 32
#: Of 32 inputs: the first of these products has what the others have once.
GROUPS = (8, 16)
DISASSEMBLER = ("aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn")
BRANCH = re.compile(r"b|b\..*|bl|blr|br|ret|cbn?z|tbn?z")


@dataclass(frozen=True)
class Product:
    """A program and its arguments, but for the number of groups."""

    name: str
    level: str
    form: str
    program: str
    arguments: tuple[str, ...]
    rows: int


def products() -> Iterator[Product]:
    """All that is compared: one row on dotprod, several on i8mm."""
    for form in FORMATS:
        for level, rows, repacked in (("dotprod", 1, "gemv"), ("i8mm", ROWS, "gemm")):
            for bits in (16, 8):
                own = (form, str(rows), str(bits))
                yield Product(f"tamiz_{bits}_bits", level, form, "tamiz", own, rows)
            for kernel in ("dot", repacked):
                arguments = (f"{kernel}_{form}", str(rows))
                yield Product(f"llama_cpp_{kernel}", level, form, "llama_cpp", arguments, rows)


def output_of(*command: str | Path) -> str:
    """What a program prints.

    Raises:
        TamizError: It is missing or fails.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise TamizError(f"{command[0]} is missing; `--help` names Debian's packages") from error
    except subprocess.CalledProcessError as error:
        raise TamizError(f"{command[0]} failed: {error.stderr.strip()[-400:]}") from error
    return done.stdout


def llama_cpp(folder: Path) -> Path:
    """The sources of llama.cpp, out of llama-cpp-python's source package."""
    pip = ("pip", "download", "--quiet", "--no-deps", "--no-binary=:all:")
    output_of(*pip, "--dest", folder, "llama-cpp-python")
    (package,) = folder.glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(package) as archive:
        archive.extractall(folder, filter="data")
    return folder / package.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"


def compile_programs(folder: Path, level: str, peer: Path) -> None:
    """Compiles both programs for a level into `folder`."""
    compiler = ("aarch64-linux-gnu-g++", "-O3", "-std=c++17", "-static")
    rounding = "-ffp-contract=off"  # as ort_ops/CMakeLists.txt has it
    definitions = (f"-DTAMIZ_TARGET={level}", f'-DTAMIZ_ISA_NAME="{level}"', "-DTAMIZ_HALVES")
    include = f"-I{ROOT / 'ort_ops' / 'src'}"
    own = (rounding, *definitions, include, SOURCES / "tamiz.cc", "-o", folder / f"tamiz-{level}")
    output_of(*compiler, *LEVELS[level], *own)
    ggml = peer / "ggml"
    cpu = ggml / "src" / "ggml-cpu"
    includes = [f"-I{path}" for path in (ggml / "include", ggml / "src", cpu)]
    flags = ("-O3", "-c", LEVELS[level][0], "-DNDEBUG", "-ffunction-sections", *includes)
    quants, repack = folder / f"quants-{level}.o", folder / f"repack-{level}.o"
    output_of("aarch64-linux-gnu-gcc", *flags, cpu / "arch" / "arm" / "quants.c", "-o", quants)
    source = cpu / "arch" / "arm" / "repack.cpp"
    output_of("aarch64-linux-gnu-g++", *flags, "-std=c++17", source, "-o", repack)
    # Of llama.cpp's other files these kernels call nothing.
    linker = "-Wl,--gc-sections,--unresolved-symbols=ignore-all"
    source = SOURCES / "llama_cpp.cc"
    output_of(*compiler, linker, source, quants, repack, "-o", folder / f"llama_cpp-{level}")


def instructions(listing: str) -> tuple[dict[int, str], dict[str, int]]:
    """Every instruction of a program by its address, and the addresses of its functions."""
    by_address: dict[int, str] = {}
    functions: dict[str, int] = {}
    for line in listing.splitlines():
        if found := re.fullmatch(r"([0-9a-f]+) <(\w+)>:", line):
            functions[found[2]] = int(found[1], 16)
        elif found := re.match(r" *([0-9a-f]+):\t([^/<]+)", line):
            by_address[int(found[1], 16)] = found[2].strip()
    return by_address, functions


def traced(log: str, functions: dict[str, int]) -> list[int]:
    """The addresses that QEMU wrote down between the beginnings of `measured` and `finished`."""
    addresses = re.findall(r"^Trace \d+: 0x[0-9a-f]+ \[[0-9a-f]+/([0-9a-f]+)/", log, re.M)
    trace = [int(address, 16) for address in addresses]
    return trace[trace.index(functions["measured"]) : trace.index(functions["finished"])]


def executed(program: Path, arguments: tuple[str, ...], log: Path) -> list[str]:
    """The instructions that a product executes, without branches."""
    qemu = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static") or "qemu-aarch64"
    single = "-one-insn-per-tb" if "one-insn-per-tb" in output_of(qemu, "-help") else "-singlestep"
    output_of(qemu, single, "-d", "exec,nochain", "-D", log, program, *arguments)
    by_address, functions = instructions(output_of(*DISASSEMBLER, program))
    lines = [by_address[address] for address in traced(log.read_text("utf-8"), functions)]
    return [line for line in lines if not BRANCH.fullmatch(line.split()[0])]


def cycles(lines: list[str], processor: str) -> int:
    """The cycles of a sequence of instructions."""
    # Addresses of constants are no operands of an assembler.
    text = [re.sub(r"^adrp?\t(\w+), .*", r"mov \1, #0", line) for line in lines]
    with tempfile.NamedTemporaryFile("w", suffix=".s") as file:
        file.write("\n".join(text) + "\n")
        file.flush()
        options = ("-mtriple=aarch64", f"-mcpu={processor}", "-mattr=+i8mm,+dotprod,+fullfp16")
        shown = output_of(analyser(), *options, "-iterations=1", file.name)
    found = re.search(r"^Total Cycles: +(\d+)$", shown, re.M)
    assert found
    return int(found[1])


def analyser() -> str:
    """The newest llvm-mca that is installed."""
    names = [f"llvm-mca-{version}" for version in range(30, 18, -1)]
    return next((name for name in names if shutil.which(name)), "llvm-mca")


def measure(product: Product, folder: Path) -> list[dict[str, object]]:
    """Instructions and cycles of a product on each processor, by bytes and by multiply-adds."""
    program = folder / f"{product.program}-{product.level}"
    few, many = (
        executed(program, (*product.arguments, str(groups)), folder / "log") for groups in GROUPS
    )
    groups = OUTPUTS * (GROUPS[1] - GROUPS[0])
    size = groups * FORMATS[product.form]
    found = []
    for processor in PROCESSORS[product.level]:
        spent = cycles(many, processor) - cycles(few, processor)
        row = asdict(product) | {"processor": processor}
        del row["program"], row["arguments"]
        row["instructions_per_byte"] = round((len(many) - len(few)) / size / product.rows, 3)
        row["cycles_per_byte"] = round(spent / size / product.rows, 4)
        row["multiply_adds_per_cycle"] = round(32 * groups * product.rows / spent, 1)
        found.append(row)
        click.echo("{name:16} {level:8} {form:5} {processor:12} ".format_map(row), nl=False)
        click.echo("{cycles_per_byte:8} cycles a byte".format_map(row))
    return found


@click.command(help=__doc__)
@click.option("--llama-cpp", "peer", type=click.Path(path_type=Path), help="Sources of llama.cpp.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="File of the result.")
def main(peer: Path | None, path: Path | None) -> None:
    """Compiles, traces and schedules all products."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = peer or llama_cpp(folder)
        for level in LEVELS:
            compile_programs(folder, level, sources)
        results = [row for product in products() for row in measure(product, folder)]
        if path:
            llvm = re.search(r"version (\S+)", output_of(analyser(), "--version"))
            peers = {"llvm": llvm[1] if llvm else "unknown", "llama.cpp": sources.parents[1].name}
            settings = {"outputs": OUTPUTS, "rows": ROWS, "groups": list(GROUPS)}
            record.write(path, "mca", results, settings=settings, peers=peers)


if __name__ == "__main__":
    main()
