"""`tamiz eval` of decoders whose losses are not finite."""

import json
from pathlib import Path

import numpy as np
import pytest

from kit.command_line import ok
from tamiz.evaluation import windows
from tamiz.runtime.kv_cache import SharedSequence


def test_losses_that_are_not_finite_are_null(
    dense_dir: Path, shared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def largest(self: SharedSequence, token: int) -> np.ndarray:
        """Logits as `--head-shortlist-fill=-inf` leaves them."""
        logits = step(self, token)
        return np.where(logits >= np.sort(logits)[-8], logits, -np.inf)

    step = SharedSequence.step
    monkeypatch.setattr(SharedSequence, "step", largest)
    monkeypatch.setattr(windows, "cut", lambda ids, n, _: [ids[:100]] * n)  # of at most 256
    text = tmp_path / "text.txt"
    text.write_text("hello world, what is large stays in the sieve. " * 20, "utf-8")
    given = ["eval", shared_dir, "--against", dense_dir, "--text", text, "--windows", 2, "--decode"]
    found = json.loads(ok(*given, "--json"))
    assert [found[name] for name in ("dppl", "ppl_decode", "kl_decode")] == [None] * 3
    assert found["ppl"] > 1
    assert found["kl_mean"] == pytest.approx(0, abs=1e-5)
    assert "inf" in ok(*given)
