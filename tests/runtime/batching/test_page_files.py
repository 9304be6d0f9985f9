"""Pages as files: whole or not used, bounded, and of no harm where the disk fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kit.equal_runs import MODELS, build_model
from tamiz.interface.states import PAGE
from tamiz.plugins import Plugins
from tamiz.runtime import Batch
from tamiz.runtime.batching.page_files import FilesOfPages
from tamiz.runtime.model import Model

TEXT = np.random.default_rng(3).integers(2, 250, 300).tolist()


@pytest.fixture(scope="module", params=["q4_1", "lfm2"])
def model(
    request: pytest.FixtureRequest, plugins: Plugins, tmp_path_factory: pytest.TempPathFactory
) -> Model:
    folder = tmp_path_factory.mktemp("files")
    return Model.load(build_model(folder, *MODELS[request.param], plugins), 2)


def read(model: Model, folder: Path, most: int = 1 << 30) -> tuple[int, bytes]:
    """Tokens found and bits of the logits of a prompt that a new batch reads."""
    batch = Batch(model, 1000, prefixes=True, files=FilesOfPages(folder, most))
    member = batch.add(TEXT, 310)
    while member.logits is None:
        batch.run()
    bits = member.logits.tobytes()
    batch.remove(member)
    batch.close()
    return member.cached, bits


def test_another_batch_finds_the_pages(model: Model, tmp_path: Path) -> None:
    cold, warm = read(model, tmp_path), read(model, tmp_path)
    assert (cold[0], warm[0]) == (0, 4 * PAGE)
    assert cold[1] == warm[1]


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_file_is_not_used(model: Model, tmp_path: Path, damage: str) -> None:
    _, expected = read(model, tmp_path)
    for file in tmp_path.rglob("*.page"):
        data = bytearray(file.read_bytes())
        data[-1] ^= damage == "changed"
        file.write_bytes(data[: {"cut": -1, "empty": 0}.get(damage)])
    assert read(model, tmp_path) == (0, expected)
    assert read(model, tmp_path) == (4 * PAGE, expected)


def test_files_have_a_largest_size(model: Model, tmp_path: Path) -> None:
    read(model, tmp_path)
    (size,) = {file.stat().st_size for file in tmp_path.rglob("*.page")}
    for file in tmp_path.rglob("*.page"):
        file.unlink()
    read(model, tmp_path, most=3 * size)
    assert len(list(tmp_path.rglob("*.page"))) <= 3


def test_another_model_finds_nothing(model: Model, tmp_path: Path, plugins: Plugins) -> None:
    (tmp_path / "other").mkdir()
    other = Model.load(build_model(tmp_path / "other", *MODELS["q5_0"], plugins), 2)
    read(model, tmp_path / "pages")
    assert read(other, tmp_path / "pages")[0] == 0


def test_a_disk_that_fails_does_no_harm(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    expected = model.sequence().read(TEXT).tobytes()
    monkeypatch.setattr(Path, "replace", full)
    assert read(model, tmp_path) == (0, expected)
    assert list(tmp_path.rglob("*.*")) == []
