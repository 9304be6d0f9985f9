"""Scripts of the repository as modules, for tests of their functions."""

import importlib.util
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).parents[2]


def load_script(path: str) -> ModuleType:
    """Executes a script, named by its path in the repository, as a new module."""
    file = REPOSITORY / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
