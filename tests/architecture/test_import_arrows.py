"""Imports run one way: between distributions, between the rooms of `tamiz`, between its modules."""

from graphlib import TopologicalSorter

import pytest

from kit.rooms import (
    CPP_ROOMS,
    PACKAGES,
    ROOMS,
    ROOT,
    cpp_arrows,
    file_of,
    imports,
    modules,
    room_arrows,
    room_of,
)

ALLOWED = {
    "tamiz_ops": set(),
    "tamiz": {"tamiz_ops"},
    "tamiz_passes": {"tamiz_ops", "tamiz"},
    "tamiz_exporters": {"tamiz_ops", "tamiz"},
}
TECHNIQUE_MAY = {"tamiz_ops", "tamiz", "tamiz_passes", "tamiz_exporters"}

#: What packages other than `tamiz` may import of it.
PUBLIC = {"tamiz.api", "tamiz.testing"}

#: Modules that are imported where a model runs, and what must stay out of that process.
RUNTIME = ("loading", "runtime.model", "runtime.text", "files.bundle", "files.errors")
HEAVY = {"onnx", "onnx_ir", "onnxscript", "pydantic", "pluggy", "rich"}


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


@pytest.mark.parametrize(("room", "never"), [("api", "runtime")])
def test_a_room_does_without_another(room: str, never: str) -> None:
    """Plugins load no session: what graphs and sessions share is in `interface`."""
    assert never not in room_arrows()[room]


def test_rooms_of_the_native_sources_include_downwards_only() -> None:
    arrows = cpp_arrows()
    assert set(arrows) == set(CPP_ROOMS)
    wrong = [
        f"{room} includes {name}"
        for room, included in arrows.items()
        for name in included
        if CPP_ROOMS.index(name) > CPP_ROOMS.index(room)
    ]
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
