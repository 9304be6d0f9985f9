"""A file that keeps one fit: its tensors, its attributes, and what it is of.

A file under the name of another fit, or one that is damaged, is not used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tamiz.api.technique import Fit
from tamiz.files.tensor_file import is_intact, write_tensors

#: Key of the metadata.
_KIND = "tamiz-fit"


def write_fit(file: Path, name: str, fit: Fit, about: Mapping[str, Any]) -> None:
    """Writes a fit.

    Args:
        file: The file; its folder is made.
        name: Of what the fit is.
        fit: The fit.
        about: What else is kept of it.
    """
    kept = {
        "of": name,
        "attributes": dict(fit.attributes),
        "metrics": dict(fit.metrics),
        "bits_per_weight": fit.bits_per_weight,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(file, fit.tensors, _KIND, kept | dict(about))


def is_fit_of(file: Path, name: str) -> bool:
    """Whether a file is whole, and of the fit of that name."""
    return is_intact(file, _KIND) and read_fit(file)[1].get("of") == name


def read_fit(file: Path) -> tuple[Fit, dict[str, Any]]:
    """A fit, and what else is kept of it."""
    from safetensors import safe_open

    with safe_open(file, "np") as opened:
        about = json.loads(opened.metadata()[_KIND])
        names = sorted(opened.keys())
        tensors = {name: opened.get_tensor(name) for name in names}
    fit = Fit(tensors, about["attributes"], about["metrics"], about["bits_per_weight"])
    return fit, about
