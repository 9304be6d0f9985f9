"""Reads reports: strict about their format, fields and types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tamiz import __version__
from tamiz.files.bundle import REPORT, Bundle
from tamiz.files.errors import TamizError
from tamiz.files.text_file import read_json
from tamiz.files.validation import first_error
from tamiz.reporting.report import FORMAT, Report


def read_report(path: Path) -> Report:
    """Reads a report.

    Raises:
        TamizError: The file cannot be read, is no report, is of another format, or a field is
            missing, unknown or of another type.
    """
    return _validated(path, read_json(path))


def is_report(path: Path) -> bool:
    """Whether a file holds a report of any format."""
    try:
        return {"tamiz", "build", "gate", "sites"} <= set(read_json(path))
    except TamizError:
        return False


def bundle_report(bundle: Bundle) -> Report:
    """The report of a built bundle.

    Raises:
        TamizError: The bundle is dense, so nothing was decided, or as `read_report`.
    """
    if bundle.manifest.kind != "built":
        raise TamizError(f"{bundle.path}: is a dense bundle, expected a built one")
    return _validated(bundle.path / REPORT, bundle.json(REPORT))


def _validated(path: Path, value: Mapping[str, Any]) -> Report:
    found = value.get("format", 1)
    if type(found) is not int or found != FORMAT:
        raise TamizError(
            f"{path}: is a report of format {found!r:.60}, this tamiz ({__version__}) reads format "
            f"{FORMAT}; build the bundle again with 'tamiz build'"
        )
    try:
        return Report.model_validate_json(json.dumps(value))
    except ValidationError as error:
        raise TamizError(f"{path}: {first_error(error, value)}") from error
