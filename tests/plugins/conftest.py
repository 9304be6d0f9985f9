"""Where TAMIZ_TEST_ONLY is set, only tests of the plugin that it names first are collected."""

import os
from pathlib import Path

collect_ignore: list[str] = []
if names := os.environ.get("TAMIZ_TEST_ONLY"):
    own = names.split(",")[0].replace("-", "_")
    folders = [path.name for path in Path(__file__).parent.iterdir() if path.is_dir()]
    assert own in folders, f"tests/plugins has no folder {own}"
    collect_ignore += ["test_pairs.py", *(name for name in folders if name != own)]
