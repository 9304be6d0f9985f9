"""The rooms of the sources and what imports what, read from the files."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CPP = ROOT / "ort_ops" / "src"

PACKAGES = {
    "tamiz_ops": ROOT / "ort_ops" / "tamiz_ops",
    "tamiz": ROOT / "tamiz",
    "tamiz_passes": ROOT / "graph_passes" / "tamiz_passes",
    "tamiz_exporters": ROOT / "exporters" / "tamiz_exporters",
    **{path.name: path for path in sorted((ROOT / "plugins").glob("tamiz_*"))},
}
#: The packages that hold techniques.
TECHNIQUES = tuple(name for name, path in PACKAGES.items() if path.parent == ROOT / "plugins")

#: The rooms of `tamiz` from the ground up: a room imports itself and those before it.
ROOMS = (
    "interface",
    "platforms",
    "files",
    "system",
    "runtime",
    "inference",
    "api",
    "planning",
    "plugins",
    "survey",
    "evaluation",
    "calibration",
    "reporting",
    "building",
    "loading",
    "testing",
    "serving",
    "cli",
)
#: The rooms of `ort_ops/src` in the same order.
CPP_ROOMS = ("base", "simd", "kernels", "engine", "ops", "abi", "python")

Arrows = dict[str, set[str]]


def imports(path: Path, *, top_level: bool = False) -> Iterator[str]:
    """Full names of the modules that a file imports, submodules of a package included."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names]
            inner = [name for name in names if file_of(name) is not None]
            yield from inner
            if len(inner) < len(names):
                yield module


def file_of(module: str) -> Path | None:
    """The file of a module of `tamiz`; None where there is no such module."""
    parts = module.split(".")
    if parts[0] != "tamiz":
        return None
    place = ROOT / Path(*parts)
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return path if path.exists() else None


def module_of(path: Path) -> str:
    """The name of the module in a file of `tamiz`."""
    name = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    return name.removesuffix(".__init__")


def modules() -> Arrows:
    """Modules of `tamiz`, and those of `tamiz` that each imports."""
    return {
        module_of(path): {name for name in imports(path) if file_of(name) is not None}
        for path in sorted((ROOT / "tamiz").rglob("*.py"))
    }


def room_of(module: str) -> str | None:
    """The room of a module; None for `tamiz` itself, whose `__init__` and `__main__` are none."""
    parts = module.split(".")
    return None if len(parts) == 1 or parts[1] == "__main__" else parts[1]


def room_arrows() -> Arrows:
    """Rooms of `tamiz`, and the other rooms that each imports."""
    arrows: Arrows = defaultdict(set)
    for module, imported in modules().items():
        if (room := room_of(module)) is not None:
            arrows[room] |= {found for name in imported if (found := room_of(name))} - {room}
    return arrows


def package_arrows() -> Arrows:
    """Packages, and the other packages that each imports; `techniques` is one of them."""
    arrows: Arrows = defaultdict(set)
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            names = {name.split(".")[0] for name in imports(path)} & set(PACKAGES)
            here = _one(package)
            arrows[here] |= {_one(name) for name in names} - {here}
    return arrows


def _one(package: str) -> str:
    return "techniques" if package in TECHNIQUES else package


def cpp_arrows() -> Arrows:
    """Rooms of `ort_ops/src`, and the other rooms whose headers each includes.

    Without `tests`, the native tests, which may include any room.
    """
    arrows: Arrows = defaultdict(set)
    for path in sorted(CPP.rglob("*")):
        room = path.relative_to(CPP).parts[0]
        if path.suffix in (".h", ".cc") and room != "tests":
            included = re.findall(r'^\s*#include "([^"/]+)/', path.read_text("utf-8"), re.M)
            arrows[room] |= {name for name in included if (CPP / name).is_dir()} - {room}
    return arrows


def reachable(arrows: Mapping[str, set[str]], start: str) -> set[str]:
    """What lies below `start`, by one arrow or more."""
    seen: set[str] = set()
    todo = [*arrows.get(start, ())]
    while todo:
        if (name := todo.pop()) not in seen:
            seen.add(name)
            todo += arrows.get(name, ())
    return seen
