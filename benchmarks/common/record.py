"""What every result of a benchmark is stored with: machine, versions, commit, date and load.

`tools/site/results.py` makes the pages of results from these files.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

import tamiz_ops

#: Generations of AMD's processors, by family and whether they have AVX-512.
_ZEN = {("25", False): "Zen 3", ("25", True): "Zen 4", ("26", True): "Zen 5"}
#: Distributions whose versions a result depends on.
DISTRIBUTIONS = ("tamiz", "tamiz-ops", "onnxruntime", "numpy", "gguf")


def write(
    path: Path,
    benchmark: str,
    results: Any,
    *,
    settings: Mapping[str, Any] | None = None,
    peers: Mapping[str, str] | None = None,
) -> None:
    """Writes one result file.

    Args:
        path: The JSON file.
        benchmark: Name of the benchmark, ``peers`` for ``benchmarks/engines/peers.py``.
        results: The numbers; their keys name units (``decode_tok_s``).
        settings: What was measured: model, threads, contexts. Of a path the name is kept.
        peers: Version of each program that was measured beside tamiz.
    """
    record = {
        "benchmark": benchmark,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(DISTRIBUTIONS) | dict(peers or {}),
        "settings": {key: _plain(value) for key, value in (settings or {}).items()},
        "results": results,
    }
    path.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def machine() -> dict[str, Any]:
    """Processor, cores, memory in GB, instruction set in use and load of the last minute."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "isa": tamiz_ops.cpu()["isa"],
        "load": round(os.getloadavg()[0], 2),
    }


def versions(names: Iterable[str]) -> dict[str, str]:
    """The installed versions of distributions; what is not installed is left out."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def version_of(python: str, distribution: str) -> str:
    """The version of a distribution that another interpreter has."""
    code = f"from importlib.metadata import version; print(version({distribution!r}))"
    asked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"


def commit() -> str:
    """The commit of this checkout, with ``+`` where files but results differ from it."""
    tracked = ("status", "--porcelain", "--untracked-files=no", "--", ":/", ":/!*/results")
    try:
        name, changes = _git("rev-parse", "--short=10", "HEAD"), _git(*tracked)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{name}+" if changes else name


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def earlier(path: Path | None) -> dict[str, Any]:
    """The results of an earlier call, which a script goes on with; empty where there are none."""
    if path is None or not path.exists():
        return {}
    results: dict[str, Any] = json.loads(path.read_text("utf-8"))["results"]
    return results


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return value.name
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _processor() -> str:
    """Its name, and its kind where a name such as AMD EPYC stands for several."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = told.get("model name", platform.processor())
    if told.get("vendor_id") != "AuthenticAMD":
        return name
    family = told.get("cpu family"), "avx512f" in told.get("flags", "")
    kind = _ZEN.get(family)
    return name if kind is None else f"{name} ({kind})"
