"""The benchmark of encoders: what it says of models in turn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.quality import encoders
from kit.encoders import write_encoder

pytestmark = pytest.mark.slow


def test_models_are_compared_with_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "ROUNDS", 3)
    noises = {"float32": 0.0, "near": 0.1, "far": 2.0}
    paths = {name: write_encoder(tmp_path / name, noise) for name, noise in noises.items()}
    texts = np.random.default_rng(1).integers(50, size=(12, 6))
    found: dict[str, dict[str, Any]] = {name: {"mb": 1.0} for name in paths}
    models = encoders.load(paths, {}, threads=1)
    encoders.compare(found, models, texts, batch=8)
    encoders.compare_mixed(found, models, ["w1 w2 w3", "w4", "w5 w6"])
    assert found["float32"]["cos_mean"] == pytest.approx(1, abs=1e-6)
    assert found["float32"]["same_nearest"] == 1
    assert found["float32"]["speed"] == 1
    assert found["far"]["cos_mean"] < found["near"]["cos_mean"] < 1
    assert len(found["far"]["speed_range"]) == 2
    assert found["float32"]["mixed_speed"] == 1
    assert found["far"]["mixed_ms"] > 0
    assert len(encoders.table(found).splitlines()) == 5
