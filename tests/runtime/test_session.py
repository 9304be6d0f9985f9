"""Sessions of bundles that are larger than the memory that is free."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tamiz.files.bundle import Bundle
from tamiz.runtime import session
from tamiz.runtime.session import load_session


def test_weights_that_do_not_fit_are_a_warning(
    shared_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = Bundle.open(shared_dir)
    size = sum(tensor.length for tensor in bundle.external)
    for free, warned in ((size - 1, True), (size, False)):
        caplog.clear()
        monkeypatch.setattr(session, "free_memory", lambda free=free: free)
        with caplog.at_level(logging.WARNING):
            load_session(bundle, 1)
        assert any("they stay in the file" in line for line in caplog.messages) is warned
