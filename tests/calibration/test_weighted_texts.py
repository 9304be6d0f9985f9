"""Texts that count more than others: means, samples, and the windows that are kept."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from kit.command_line import ok, tamiz
from tamiz.calibration.calibrate import Text, calibrate_bundle
from tamiz.calibration.calibration import KEPT_WINDOWS, Calibration
from tamiz.calibration.file import load
from tamiz.calibration.kept import HELD_OUT_WINDOWS
from tamiz.evaluation.windows import Window, window_hash
from tamiz.files.bundle import Bundle
from tamiz.plugins import Plugins

SITE = "layers.0.attn_q"
LENGTH = 256


def write(path: Path, words: str) -> Path:
    path.write_text("".join(f"{words}{n} " for n in range(60)))
    return path


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("texts")
    prose = write(folder / "prose.txt", "The quick brown fox jumps over the lazy dog, it does. ")
    return prose, write(folder / "code.py", "def f(x): return x[0] + 1  # hello\n")


@pytest.fixture(scope="module")
def measured(
    dense_dir: Path, texts: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Calibration]:
    """Each text alone, and both with weights 1 and 3."""
    folder = tmp_path_factory.mktemp("calibrations")
    prose, code = texts
    asked: dict[str, list[Any]] = {"prose": [prose], "code": [code], "both": [prose, f"{code}=3"]}
    for name, arguments in asked.items():
        given = [part for text in arguments for part in ("--text", text)]
        ok("calibrate", dense_dir, "-o", folder / name, "--windows", 2, "--samples", 64, *given)
    return {name: load(folder / name, Bundle.open(dense_dir)) for name in asked}


def mean(known: Calibration, site: str = SITE) -> np.ndarray:
    statistics = known.statistics(site)
    assert statistics is not None
    return statistics.imatrix


def test_means_are_weighted(measured: dict[str, Calibration]) -> None:
    both, prose, code = (mean(measured[name]) for name in ("both", "prose", "code"))
    np.testing.assert_allclose(both, (prose + 3 * code) / 4, rtol=1e-5)
    assert measured["both"].count == 4 * LENGTH
    assert measured["both"].mass == 2 * LENGTH + 3 * 2 * LENGTH
    assert measured["both"].digest != measured["prose"].digest


def test_the_file_of_a_merge_is_that_of_one_run(
    measured: dict[str, Calibration], plugins: Plugins, dense_dir: Path, tmp_path: Path, texts
) -> None:
    prose, code = texts
    settings: dict[str, Any] = {"windows": 2, "samples": 64}
    for name, text in (("prose", Text(prose)), ("code", Text(code, 3))):
        calibrate_bundle(dense_dir, tmp_path / name, plugins, texts=[text], **settings)
    merged = [tmp_path / "prose", tmp_path / "code"]
    joined = calibrate_bundle(dense_dir, tmp_path / "joined", plugins, merged=merged, **settings)
    both = measured["both"]
    assert (joined.tokens, joined.weights, joined.mass) == (both.tokens, both.weights, both.mass)
    assert np.array_equal(joined.priorities, both.priorities)
    np.testing.assert_allclose(mean(joined), mean(both), rtol=1e-6)


def synthetic(weights: dict[str, float], windows: int) -> Calibration:
    """Windows of texts, each of which has its own weight; inputs are of no interest."""
    known = Calibration("model", {"a": "x"}, {"x": 400})
    for number in range(windows):
        for place, (origin, weight) in enumerate(weights.items()):
            tokens = [10 * number + place] * 512
            known.add(Window(origin, tokens, weight), {"x": np.ones((512, 1), np.float32)})
    return known


def test_heavier_texts_have_more_of_the_samples() -> None:
    known = synthetic({"light": 1.0, "heavy": 4.0}, 8)
    statistics = known.statistics("a")
    assert statistics is not None
    share = float((statistics.origins == "heavy").mean())
    assert share == pytest.approx(0.8, abs=0.05)  # 400 draws: a standard deviation of 0.02
    even = synthetic({"one": 1.0, "two": 1.0}, 8).statistics("a")
    assert float((even.origins == "one").mean()) == pytest.approx(0.5, abs=0.06)


def test_weight_one_draws_what_no_weight_draws() -> None:
    plain, one = Calibration("m", {"a": "x"}, {"x": 4}), Calibration("m", {"a": "x"}, {"x": 4})
    values = {"x": np.arange(8, dtype=np.float32)[:, None]}
    plain.add(Window("t", list(range(8))), values)
    one.add(Window("t", list(range(8)), 1.0), values)
    assert np.array_equal(plain.priorities, one.priorities)


def test_held_out_windows_are_of_all_texts() -> None:
    known = Calibration("model", {"a": "x"}, {"x": 4})
    for origin, weight in (("prose", 1.0), ("code", 1.0), ("german", 3.0)):
        for number in range(24):
            window = Window(origin, [number] * 8, weight)
            known.add(window, {"x": np.ones((8, 1), np.float32)})
    kept = [known.origins[number] for number in known.kept]
    assert len(kept) == len(known.tokens) == KEPT_WINDOWS
    assert kept.count("german") == pytest.approx(3 / 5 * KEPT_WINDOWS, abs=2)
    assert kept.count("prose") == pytest.approx(1 / 5 * KEPT_WINDOWS, abs=2)
    # Two that are joined to 1,024 tokens follow each other in one text.
    for one, other in zip(known.kept[::2], known.kept[1::2], strict=True):
        assert other == one + 1
        assert known.origins[one] == known.origins[other]


def test_texts_of_the_same_file_name_are_several_texts(dense_dir: Path, tmp_path: Path) -> None:
    names = ["wiki/train.txt", "code/train.txt", "other.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, f"{name}: the quick brown fox jumps over the lazy dog. ")
    given = [part for name in names for part in ("--text", tmp_path / name)]
    ok("calibrate", dense_dir, "-o", tmp_path / "c", "--windows", 12, "--samples", 64, *given)
    known = load(tmp_path / "c", Bundle.open(dense_dir))
    assert known.origins == [name for name in names for _ in range(12)]
    kept = [known.origins[number] for number in known.kept]
    assert [kept.count(name) for name in names] == [12, 10, 10]


def test_a_text_that_is_given_twice_is_one_text(
    dense_dir: Path, texts: tuple[Path, Path], tmp_path: Path
) -> None:
    same = texts[0].parent / "." / ".." / texts[0].parent.name / texts[0].name
    given = ["--text", texts[0], "--text", f"{same}=2", "--windows", 1]
    ok("calibrate", dense_dir, "-o", tmp_path / "c", *given)
    assert load(tmp_path / "c", Bundle.open(dense_dir)).origins == [texts[0].name] * 2


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf", "many", ""])
def test_a_weight_is_a_number_above_0(
    weight: str, dense_dir: Path, texts: tuple[Path, Path], tmp_path: Path
) -> None:
    text = f"{texts[0]}={weight}"
    result = tamiz("calibrate", dense_dir, "-o", tmp_path / "c", "--text", text)
    assert result.exit_code == 2
    expected = f"found the weight {weight!r}, expected a number above 0"
    assert expected in " ".join(result.stderr.split())


def test_a_file_with_such_a_name_is_read_whole(
    dense_dir: Path, texts: tuple[Path, Path], tmp_path: Path
) -> None:
    odd = tmp_path / "a=3"
    odd.write_bytes(texts[0].read_bytes())
    ok("calibrate", dense_dir, "-o", tmp_path / "c", "--text", odd, "--windows", 1)
    assert load(tmp_path / "c", Bundle.open(dense_dir)).weights == [1.0]


def test_a_file_without_weights_is_read(
    dense_dir: Path, texts: tuple[Path, Path], plugins: Plugins, tmp_path: Path
) -> None:
    path = tmp_path / "c"
    known = calibrate_bundle(dense_dir, path, plugins, texts=[texts[0]], windows=2)
    with safetensors.safe_open(path, "np") as file:
        about = json.loads(file.metadata()["tamiz-calibration"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    about = {key: value for key, value in about.items() if key not in ("weights", "kept", "mass")}
    old = {"tamiz-calibration": json.dumps({**about, "version": 3})}
    for name, samples in known.samples.items():  # which were floats
        tensors[f"samples/{name}"] = samples.floats()
        del tensors[f"scales/{name}"]
    safetensors.numpy.save_file(tensors, path, old)
    again = load(path, Bundle.open(dense_dir))
    assert (again.tokens, again.mass, again.digest) == (known.tokens, known.mass, known.digest)
    for name, samples in known.samples.items():
        np.testing.assert_allclose(again.samples[name].floats(), samples.floats(), rtol=1e-6)


@pytest.mark.parametrize("windows", [1, 2, 3, 5, 8, 24])
@pytest.mark.parametrize("texts", [("a",), ("a", "b"), ("a", "b", "c")])
def test_held_out_windows_are_of_every_text_and_no_fit_sees_them(
    windows: int, texts: tuple[str, ...]
) -> None:
    known = synthetic(dict.fromkeys(texts, 1.0), windows)
    total = windows * len(texts)
    assert len(known.held_out) <= min(HELD_OUT_WINDOWS, total // 2)
    assert len(known.held_out) >= (total > 1)
    read = [list(window.tokens) for window in (*known.held_out, *known.fitting)]
    assert sorted(read) == sorted(known.tokens)
    assert known.fitting
    if windows > 1:
        assert {window.tokens[0] % 10 for window in known.held_out} == set(range(len(texts)))
    judged = {window_hash(window.tokens) for window in known.held_out}
    numbers = [i for i, window in enumerate(known.windows) if window in judged]
    statistics = known.statistics("a")
    assert statistics is not None
    seen = int((~np.isin(known.places[:400], numbers)).sum())
    assert len(statistics.samples) == seen > 0
