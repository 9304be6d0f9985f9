"""Imports run one way: between distributions, between the rooms of `tamiz`, between its modules."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = {
    "tamiz_ops": ROOT / "ort_ops" / "tamiz_ops",
    "tamiz": ROOT / "tamiz",
    "tamiz_passes": ROOT / "graph_passes" / "tamiz_passes",
    "tamiz_exporters": ROOT / "exporters" / "tamiz_exporters",
    **{path.name: path for path in sorted((ROOT / "plugins").glob("tamiz_*"))},
}
ALLOWED = {
    "tamiz_ops": set(),
    "tamiz": {"tamiz_ops"},
    "tamiz_passes": {"tamiz_ops", "tamiz"},
    "tamiz_exporters": {"tamiz_ops", "tamiz"},
}
TECHNIQUE_MAY = {"tamiz_ops", "tamiz", "tamiz_passes", "tamiz_exporters"}

#: The rooms of `tamiz` from the ground up: a room imports itself and those before it.
ROOMS = (
    "files",
    "runtime",
    "api",
    "plugins",
    "survey",
    "planning",
    "evaluation",
    "calibration",
    "reporting",
    "building",
    "testing",
    "cli",
)
#: What packages other than `tamiz` may import of it.
PUBLIC = {"tamiz.api", "tamiz.testing"}

#: Modules that are imported where a model runs, and what must stay out of that process.
RUNTIME = ("runtime.model", "runtime.text", "files.bundle", "files.errors")
HEAVY = {"onnx", "onnx_ir", "onnxscript", "pydantic", "pluggy", "rich"}


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
    name = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    return name.removesuffix(".__init__")


def modules() -> dict[str, set[str]]:
    """Modules of `tamiz`, and those of `tamiz` that each imports."""
    return {
        module_of(path): {name for name in imports(path) if file_of(name) is not None}
        for path in sorted((ROOT / "tamiz").rglob("*.py"))
    }


def room_of(module: str) -> str | None:
    """The room of a module; None for `tamiz` itself, whose `__init__` and `__main__` are none."""
    parts = module.split(".")
    return None if len(parts) == 1 or parts[1] == "__main__" else parts[1]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    files = sorted(PACKAGES[package].rglob("*.py"))
    assert files, f"{PACKAGES[package]} holds no sources"
    allowed = ALLOWED.get(package, TECHNIQUE_MAY) | {package}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in imports(path)
        if name.split(".")[0] in PACKAGES and name.split(".")[0] not in allowed
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "package",
    [
        name
        for name in PACKAGES
        if name not in ALLOWED or name in ("tamiz_passes", "tamiz_exporters")
    ],
)
def test_plugins_import_the_public_api_only(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted(PACKAGES[package].rglob("*.py"))
        for name in imports(path)
        if name.split(".")[0] == "tamiz" and name not in PUBLIC
    ]
    assert wrong == []


def test_every_module_has_a_room() -> None:
    rooms = {room_of(module) for module in modules()} - {None}
    assert rooms == set(ROOMS)


def test_rooms_import_downwards_only() -> None:
    wrong = []
    for module, imported in modules().items():
        room = room_of(module)
        if room is None:
            continue
        above = ROOMS[ROOMS.index(room) + 1 :]
        wrong += [f"{module} imports {name}" for name in imported if room_of(name) in above]
    assert wrong == []


def test_no_two_modules_import_each_other() -> None:
    tuple(TopologicalSorter(modules()).static_order())  # raises CycleError


def test_what_runs_models_reaches_nothing_heavy() -> None:
    """Follows the imports at the top of the runtime's modules through `tamiz`."""
    seen: dict[str, str] = {}
    todo = [(f"tamiz.{name}", "") for name in RUNTIME]
    assert all(file_of(module) is not None for module, _ in todo)
    while todo:
        module, importer = todo.pop()
        if module in seen:
            continue
        seen[module] = importer
        path = file_of(module)
        if path is not None:
            todo += [(name, module) for name in imports(path, top_level=True)]
    heavy = {m: importer for m, importer in seen.items() if m.split(".")[0] in HEAVY}
    assert heavy == {}
