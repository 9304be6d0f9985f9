"""Models split over several GGUF files, ``NAME-00001-of-00003.gguf`` and so on."""

from __future__ import annotations

import re
from pathlib import Path

from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_scales import fold_scales

_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


def open_gguf(path: Path) -> GgufFile:
    """Opens a GGUF file, and the other parts of the model where it is split.

    Args:
        path: The file; of a split model its first part, which holds the metadata.

    Returns:
        The first part, with the tensors of all parts.

    Raises:
        TamizError: A part is damaged, missing, or of another model.
    """
    first = GgufFile(path)
    count = first.get("split.count", int, 1)
    if count > 1:
        _add_parts(first, path, count)
    fold_scales(first)
    return first


def _add_parts(first: GgufFile, path: Path, count: int) -> None:
    """Adds the tensors of the other parts to those of the first one."""
    name = _NAME.fullmatch(path.name)
    if name is None or int(name["count"]) != count:
        first.fail("name", path.name, f"one that ends in -00001-of-{count:05d}.gguf")
    for number in range(count):
        part_path = path.with_name(f"{name['stem']}-{number + 1:05d}-of-{name['count']}.gguf")
        if number and not part_path.is_file():
            first.fail("split.count", f"no {part_path.name}", f"{count} parts beside each other")
        part = GgufFile(part_path) if number else first
        if (number_in_file := part.get("split.no", int)) != number:
            part.fail("split.no", number_in_file, f"{number}; the model is named by its first part")
        if (number_in_file := part.get("split.count", int)) != count:
            part.fail("split.count", number_in_file, f"{count}, as in {path.name}")
        for tensor in part.tensors.values() if number else ():
            if first.tensors.setdefault(tensor.name, tensor) is not tensor:
                part.fail(f"tensor {tensor.name}", "the name in two parts", "every name once")
    total = first.get("split.tensors.count", int, len(first.tensors))
    if total != len(first.tensors):
        first.fail("split.tensors.count", total, f"{len(first.tensors)}, as the parts have")
