"""Imports run one way: tamiz_ops ← tamiz ← tamiz_passes, tamiz_exporters ← techniques."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LAYERS = {
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

#: Modules that are imported where a model runs, and what must stay out of that process.
RUNTIME = ("runtime", "bundle", "external_data", "errors")
HEAVY = {"onnx", "onnx_ir", "onnxscript", "pydantic", "pluggy", "rich"}


def imports(path: Path, *, top_level: bool = False) -> Iterator[str]:
    """Full names of the modules that a file imports."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


@pytest.mark.parametrize("package", LAYERS)
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    files = sorted(LAYERS[package].rglob("*.py"))
    assert files, f"{LAYERS[package]} holds no sources"
    allowed = ALLOWED.get(package, TECHNIQUE_MAY) | {package}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in imports(path)
        if name.split(".")[0] in LAYERS and name.split(".")[0] not in allowed
    ]
    assert wrong == []


def test_what_runs_models_reaches_nothing_heavy() -> None:
    """Follows the imports at the top of the runtime's modules through the core."""
    seen: dict[str, str] = {}
    todo = [(f"tamiz.{name}", "") for name in RUNTIME if (ROOT / "tamiz" / f"{name}.py").exists()]
    while todo:
        module, importer = todo.pop()
        if module in seen:
            continue
        seen[module] = importer
        if module.split(".")[0] == "tamiz":
            path = ROOT / Path(*module.split("."))
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            todo += [(name, module) for name in imports(path, top_level=True)]
    heavy = {m: importer for m, importer in seen.items() if m.split(".")[0] in HEAVY}
    assert heavy == {}
