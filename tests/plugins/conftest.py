"""Where TAMIZ_TEST_ONLY is set, only tests of the technique that it names are collected."""

import os
from pathlib import Path

collect_ignore: list[str] = []
if name := os.environ.get("TAMIZ_TEST_ONLY"):
    own = name.replace("-", "_")
    folders = [path.name for path in Path(__file__).parent.iterdir() if path.is_dir()]
    assert own in folders, f"tests/plugins has no folder {own}"
    collect_ignore += ["test_former_names.py", "test_pairs.py"]
    collect_ignore += [folder for folder in folders if folder != own]
