"""Options of sessions, and what they say of weights that do not fit in memory."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kit.encoders import write_encoder
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


@pytest.mark.parametrize("encoder", [True, False])
def test_idle_threads_of_encoders_soon_sleep(
    encoder: bool, dense_dir: Path, tmp_path: Path
) -> None:
    """Steps of a decoder are too far apart."""
    folder = write_encoder(tmp_path / "encoder") if encoder else dense_dir
    loaded, _ = load_session(Bundle.open(folder))
    options = loaded.get_session_options()
    if encoder:
        assert options.get_session_config_entry("session.intra_op.spin_duration_us") == "20"
    else:
        with pytest.raises(RuntimeError, match="spin_duration_us"):
            options.get_session_config_entry("session.intra_op.spin_duration_us")
