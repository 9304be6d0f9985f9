"""How fast this machine reads weights, multiplies and attends: what a predicted speed rests on.

The profile is measured with tamiz's own operators in onnxruntime (`tamiz.evaluation.probes`), once
for each machine. Rates, in 10^9 a second:

- ``read_gb_s``: bytes of weights read, by working set in MB: int8 products, less what multiplying
  adds to them (`tamiz.planning.speed`).
- ``records_gb_s``: the same of single cache lines with gaps between them: products that skip a
  random half of their inputs.
- ``products_g_s``: weights multiplied from the cache: one int4 product again and again.
- ``attention_gb_s``: bytes of keys and values attended by a decode step.
- ``chosen_gb_s``: the same of keys that a filter chose here and there, and that a run of products
  left in no cache.

Fixed costs per node, in microseconds:

- ``product_us``: a product: the time of a small product minus its bytes at the rate of large ones.
- ``attention_us``: an attention of a single key, and what a run does for its keys and values, after
  a run of products that left nothing of either in the caches.
- ``node_us``: a norm.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

from tamiz.files.errors import TamizError
from tamiz.files.text_file import read_json, write_json
from tamiz.system.cores import cores

#: What no core of any machine reaches: rates in 10^9 a second, and what a node may cost.
_MOST_A_THREAD, _MOST_US = 1000.0, 1e5


@dataclass(frozen=True)
class MachineSpeed:
    """Rates and costs with a number of threads; see the top of this file."""

    threads: int
    read_gb_s: dict[str, float]
    records_gb_s: dict[str, float]
    products_g_s: float
    attention_gb_s: float
    chosen_gb_s: float
    product_us: float
    attention_us: float
    node_us: float

    def impossible(self) -> str | None:
        """Says which number no machine can have; None if all are possible."""
        most = _MOST_A_THREAD * self.threads
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            limit = _MOST_US if field.name.endswith("_us") else most
            least = 0.0 if field.name.endswith("_us") else 1e-3
            for name, number in value.items() if isinstance(value, dict) else [("", value)]:
                if not least <= number <= limit:
                    place = f"{field.name} at {name} MB" if name else field.name
                    return f"{place} is {number:g} with {self.threads} threads, at most {limit:g}"
        return None

    def read_rate(self, working_set: int) -> float:
        """Bytes per second, linear in the logarithm of the working set (bytes)."""
        return _rate(self.read_gb_s, working_set)

    def record_rate(self, working_set: int) -> float:
        """The same of single cache lines."""
        return _rate(self.records_gb_s, working_set)


@dataclass(frozen=True)
class Profile:
    """The measured machine.

    Attributes:
        machine: What it was measured on; a profile of anything else is stale.
        speeds: With one thread, and with one a core.
        load: Processes that wanted a core when the measurement began, on average over a minute.
        spread: How much longer the slowest round took than the fastest, without a quarter of the
            rounds at either end, as a fraction: the largest of all graphs that read weights.
    """

    machine: dict[str, str]
    speeds: tuple[MachineSpeed, ...]
    load: float = 0.0
    spread: float = 0.0

    def impossible(self) -> str | None:
        """See `MachineSpeed.impossible`."""
        return next((reason for s in self.speeds if (reason := s.impossible())), None)


def _rate(measured: Mapping[str, float], working_set: int) -> float:
    points = sorted((math.log(float(mb) * 1e6), gb) for mb, gb in measured.items())
    at = math.log(max(1, working_set))
    for (x0, y0), (x1, y1) in pairwise(points):
        if at <= x1:
            part = max(0.0, (at - x0) / (x1 - x0))
            return (y0 + part * (y1 - y0)) * 1e9
    return points[-1][1] * 1e9


def path() -> Path:
    """Where the profile lies: in the user's cache directory."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "tamiz" / "machine.json"


def load() -> Profile | None:
    """The profile of this machine; None if there is none, or a wrong one.

    A profile of another machine or version is wrong, and one with impossible numbers.
    """
    file = path()
    try:
        value = read_json(file)
        speeds = tuple(MachineSpeed(**speed) for speed in value["speeds"])
        profile = Profile(value["machine"], speeds, value["load"], value["spread"])
        wrong = profile.impossible()
    except (OSError, TamizError, AttributeError, KeyError, TypeError):
        return None
    return profile if profile.machine == identity() and not wrong else None


def save(profile: Profile) -> Path:
    """Writes the profile where `load` finds it."""
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    write_json(scratch, json.loads(json.dumps(asdict(profile))))
    os.replace(scratch, file)
    return file


def identity() -> dict[str, str]:
    """What a profile depends on."""
    return {
        "cpu": _cpu_name(),
        "cores": str(cores()),
        "isa": os.environ.get("TAMIZ_ISA", ""),
        "tamiz_ops": version("tamiz-ops"),
        "onnxruntime": version("onnxruntime"),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
