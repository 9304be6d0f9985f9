"""Files of cgroups as Linux and Docker lay them out."""

from __future__ import annotations

from pathlib import Path


def made(root: Path, groups: str, files: dict[str, str]) -> Path:
    """A folder with `proc/self/cgroup` and files below `sys/fs/cgroup`."""
    for name, text in {"proc/self/cgroup": groups}.items() | {
        f"sys/fs/cgroup/{name}": text for name, text in files.items()
    }.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    return root
