"""A window of last tokens with techniques that choose among its keys."""

from pathlib import Path
from typing import Any

import pytest

from kit.masked_columns import check_masked_columns


@pytest.mark.parametrize(
    "choosing",
    [{"key-filter": {"keep": 3}}, {"state-pack": {"keep": 3, "recent": 2}}],
    ids=["key-filter", "state-pack"],
)
def test_masked_columns_are_no_positions(
    tiny_dense: Path, tmp_path: Path, choosing: dict[str, Any]
) -> None:
    techniques = {"window-attention": {"tokens": 80}, **choosing}
    check_masked_columns(tiny_dense, tmp_path / "bare", techniques)
