import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from kit import encoders
from tamiz.calibration import calibrate as module
from tamiz.calibration.calibrate import Text, calibrate_bundle, text_windows
from tamiz.calibration.calibration import Calibration
from tamiz.calibration.file import load
from tamiz.calibration.rows import Rows, row_bytes
from tamiz.files.bundle import Bundle, Source, write_manifest
from tamiz.files.errors import TamizError, UnwritableError
from tamiz.plugins import Plugins
from tamiz.survey.activations import Activations
from tamiz.survey.survey import survey

TEXT = "The quick brown fox jumps over the lazy dog; hello hello. "


def write_text(path: Path, words: str) -> Path:
    path.write_text("".join(f"{words}{n} " for n in range(60)))
    return path


@pytest.fixture
def texts(tmp_path: Path) -> list[Path]:
    return [write_text(tmp_path / "a.txt", TEXT), write_text(tmp_path / "b.txt", TEXT[::-1])]


def run(dense: Path, plugins: Plugins, name: str, **options: Any) -> Calibration:
    target = dense.parent / name
    calibrate_bundle(dense, target, plugins, **{"windows": 3, "samples": 64, **options})
    return load(target, Bundle.open(dense))


def same(a: Calibration, b: Calibration) -> None:
    assert (a.count, a.inputs, a.windows, a.tokens) == (b.count, b.inputs, b.windows, b.tokens)
    assert a.origins == b.origins
    assert np.array_equal(a.priorities, b.priorities)
    assert np.array_equal(a.places, b.places)
    for name in a.sums:
        np.testing.assert_allclose(a.sums[name], b.sums[name], rtol=1e-12)
        assert np.array_equal(a.samples[name].floats(), b.samples[name].floats())
        assert np.array_equal(a.runs[name], b.runs[name])


def test_what_is_measured_are_the_inputs(
    plugins: Plugins, tiny_dense: Path, texts: list[Path]
) -> None:
    found = run(tiny_dense, plugins, "c", texts=texts[:1], samples=10_000)
    surveyed = survey(Bundle.open(tiny_dense), plugins)
    activations = Activations(surveyed)
    assert len(found.tokens) == 3
    values = [activations(window) for window in found.tokens]
    for site in ("layers.0.attn_q", "layers.1.ffn_down", "output"):
        name = activations.inputs[site]
        x = np.concatenate([value[name] for value in values])
        statistics = found.statistics(site)
        assert statistics is not None
        assert statistics.count == len(x) == 3 * 256
        np.testing.assert_allclose(statistics.imatrix, np.square(x).mean(axis=0), rtol=1e-5)
        assert any(np.array_equal(statistics.run, value[name]) for value in values)
        assert len(found.samples[name]) == len(x)
        windows = np.split(statistics.samples, 2)  # in the order of the text; the third one judges
        for window, value in zip(windows, values[:2], strict=True):
            kept = Rows.of(value[name]).floats()
            assert {row.tobytes() for row in window} == {row.tobytes() for row in kept}
    assert found.inputs["layers.0.attn_q"] == found.inputs["layers.0.attn_v"]
    assert found.statistics("tok_embd") is None


def test_of_a_head_more_is_kept_and_where_it_is_from(
    plugins: Plugins, tiny_dense: Path, texts: list[Path]
) -> None:
    found = run(tiny_dense, plugins, "c", texts=texts, samples=20)
    head, linear = found.statistics("output"), found.statistics("layers.0.attn_q")
    assert head is not None
    assert head.origins is not None
    assert linear is not None
    assert len(found.samples[found.inputs["output"]]) == 6 * 256
    # Of six windows, taken by turns, the last two judge.
    assert head.origins.tolist() == 2 * 256 * ["a.txt"] + 2 * 256 * ["b.txt"]
    assert len(found.samples[found.inputs["layers.0.attn_q"]]) == 20
    assert len(linear.samples) < 20
    # The tokens that all sites keep are the first of those that the head keeps.
    kept = {row.tobytes() for row in found.samples[found.inputs["output"]].floats()[:20]}
    once = run(tiny_dense, plugins, "d", texts=texts, samples=20, memory=80 * 640)
    assert len(once.samples[once.inputs["output"]]) == 80 * 640 // 4 // row_bytes(64)
    fewer = once.samples[once.inputs["output"]].floats()[:20]
    assert kept >= {row.tobytes() for row in fewer}


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 130, "model_type": "roberta", "pad_token_id": 1}, 128),
        ({"max_position_embeddings": 130, "model_type": "bert", "pad_token_id": 1}, 130),
        ({"max_position_embeddings": 514, "model_type": "mpnet", "pad_token_id": 1}, 512),
        ({}, 512),
    ],
)
def test_windows_are_as_long_as_the_model_has_positions(
    config: dict[str, Any], length: int, tmp_path: Path
) -> None:
    folder = encoders.write_encoder(tmp_path / "encoder")
    (folder / "config.json").write_text(json.dumps(config))
    write_manifest(folder, "dense", Source("made"))
    text = encoders.write_text(tmp_path / "text.txt", 600)
    (window,) = text_windows(Bundle.open(folder), [Text(text)], windows=1)
    assert len(window.tokens) == length


def test_merged_files_are_one_run(plugins: Plugins, tiny_dense: Path, texts: list[Path]) -> None:
    both = run(tiny_dense, plugins, "both", texts=texts)
    run(tiny_dense, plugins, "a", texts=texts[:1])
    run(tiny_dense, plugins, "b", texts=texts[1:])
    files = [tiny_dense.parent / "a", tiny_dense.parent / "b"]
    same(run(tiny_dense, plugins, "joined", merged=files), both)
    same(run(tiny_dense, plugins, "added", texts=texts[:1], merged=files[1:]), both)


def test_two_runs_have_the_same_bytes(
    plugins: Plugins, tiny_dense: Path, texts: list[Path]
) -> None:
    for name in ("one", "two"):
        run(tiny_dense, plugins, name, texts=texts)
    folder = tiny_dense.parent
    assert (folder / "one").read_bytes() == (folder / "two").read_bytes()


def test_an_interrupted_run_goes_on(
    plugins: Plugins, tiny_dense: Path, texts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tiny_dense, plugins, "whole", texts=texts)
    monkeypatch.setattr(module, "_SAVE_EVERY", 1)
    calls: list[int] = []
    real = Activations.measure

    def dying(self: Activations, window: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(self, window)

    monkeypatch.setattr(Activations, "measure", dying)
    with pytest.raises(KeyboardInterrupt):
        run(tiny_dense, plugins, "broken", texts=texts)
    assert not (tiny_dense.parent / "broken").exists()
    same(run(tiny_dense, plugins, "broken", texts=texts), whole)
    assert len(calls) == 4 + 3
    assert not (tiny_dense.parent / "broken.part").exists()


def test_the_model_writes_text_of_its_own(plugins: Plugins, tiny_dense: Path) -> None:
    one = run(tiny_dense, plugins, "one", windows=4, domains=["own"])
    assert (len(one.tokens), one.count) == (4, 1024)
    same(run(tiny_dense, plugins, "two", windows=4, domains=["own"]), one)
    assert set(one.origins) == {"written on openings", "written chat", "written prose"}


def test_memory_caps_the_samples(plugins: Plugins, tiny_dense: Path, texts: list[Path]) -> None:
    widths = [64, 64, 64, 96] * 2
    packed, floats = sum(map(row_bytes, widths)), 4 * (sum(widths) + 64)
    memory = 40 * (packed + floats)
    found = run(tiny_dense, plugins, "c", texts=texts, memory=memory)
    # A quarter of the memory is for the head.
    kept = {name: len(samples) for name, samples in found.samples.items()}
    of_head = memory // 4 // row_bytes(64)
    assert kept.pop(found.inputs["output"]) == of_head
    left = memory - of_head * row_bytes(64)
    assert set(kept.values()) == {left // (packed + floats)}
    with pytest.raises(TamizError, match="expected more memory"):
        run(tiny_dense, plugins, "c", texts=texts, memory=100)


def test_refusals(plugins: Plugins, tiny_dense: Path, texts: list[Path]) -> None:
    run(tiny_dense, plugins, "c", texts=texts)
    bundle, whole = Bundle.open(tiny_dense), (tiny_dense.parent / "c").read_bytes()
    broken = tiny_dense.parent / "broken"
    for content in (whole[:-1], whole[:100], b"", b"{}", b"\xff" * 1000):
        broken.write_bytes(content)
        with pytest.raises(TamizError, match="broken: not a complete calibration file"):
            load(broken, bundle)
    with pytest.raises(TamizError, match="none: cannot be read: No such file"):
        load(tiny_dense.parent / "none", bundle)
    model = tiny_dense / "model.onnx"
    model.write_bytes(model.read_bytes() + b"\x82\x01\x00")
    write_manifest(tiny_dense, "dense", bundle.manifest.source)
    with pytest.raises(TamizError, match="calibrates another model than"):
        load(tiny_dense.parent / "c", Bundle.open(tiny_dense))


def test_a_place_that_cannot_be_written_is_told_before_the_measurement(
    plugins: Plugins, tiny_dense: Path, texts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Activations, "__call__", lambda *_: pytest.fail("measures"))
    with pytest.raises(UnwritableError, match=r"none/c: cannot be written: No such file"):
        run(tiny_dense, plugins, "none/c", texts=texts)
    with pytest.raises(TamizError, match=r"tiny-dense: is a folder, expected a file"):
        run(tiny_dense, plugins, tiny_dense.name, texts=texts)


def test_texts_that_cannot_be_read(plugins: Plugins, tiny_dense: Path, tmp_path: Path) -> None:
    short, binary = tmp_path / "short", tmp_path / "binary"
    short.write_text("hello")
    binary.write_bytes(b"\xff\xfe\xff")
    for path, reason in (
        (short, "expected at least 256"),
        (binary, "UTF-8"),
        (tmp_path, "regular"),
    ):
        with pytest.raises(TamizError, match=reason):
            run(tiny_dense, plugins, "c", texts=[path])
    assert not (tiny_dense.parent / "c").exists()


def test_a_calibration_is_plain_data(plugins: Plugins, tiny_dense: Path, texts: list[Path]) -> None:
    found = run(tiny_dense, plugins, "c", texts=texts)
    assert json.dumps(dataclasses.asdict(found)["inputs"])
    assert found.priorities.dtype == np.uint64
    assert (np.diff(found.priorities.astype(np.float64)) >= 0).all()


DESCRIPTIONS: dict[str, Any] = {
    "version": [1, "3", None],
    "model": [1, None, []],
    "inputs": [[], "x", {"a": 1}, {"a": []}, {"layers.0.attn_q": "missing"}],
    "expert_inputs": [[], "x", {"a": 1}, {"layers.0.ffn_up_exps": "missing"}, None],
    "limits": [[], {}, {"x": 1}, {"x": "1"}, None],
    "count": ["1", 1.5, -1, True, 2**70, None],
    "windows": ["x", {}, [1], [["x"]], None],
    "origins": ["x", {}, [1], [], ["a", "b", "c", "d"], None, ["\ud800"] * 3],
    "run_window": [1, None],
    "weights": ["x", [], [1.0], [0.0] * 3, ["1"] * 3, [1e999] * 3, None],
    "kept": ["x", [], [0, 0, 1], [0, 1, 3], [-1, 0, 1], [0.0, 1, 2], None],
    "judging_origins": ["x", {}, [1], ["a"], None],
    "judging_weights": ["x", {}, [1.0], None],
    "mass": ["1", 0, -1.0, 1e999, True, None],
}
TENSORS: dict[str, Any] = {
    "tokens": [[-1, "all"], [10**6, "all"], "rank", "float", "more"],
    "places": [[-1, "all"], [99, "all"], "rank", "float", "fewer"],
    "priorities": ["rank", "float", "fewer", "falling"],
    "judging": ["rank", "float"],
}


def changed_tensor(tensor: np.ndarray, how: Any) -> np.ndarray:
    if how == "rank":
        return tensor[None]
    if how == "float":
        return tensor.astype(np.float32)
    if how == "fewer":
        return tensor[:-1]
    if how == "more":
        return np.concatenate([tensor] * 5)
    if how == "falling":
        return tensor[::-1].copy()
    return np.full_like(tensor, how[0])


def test_a_file_that_was_changed_costs_one_sentence(
    plugins: Plugins, tiny_dense: Path, texts: list[Path], tmp_path: Path
) -> None:
    run(tiny_dense, plugins, "c", texts=texts[:1])
    path, bundle = tiny_dense.parent / "c", Bundle.open(tiny_dense)
    with safetensors.safe_open(path, "np") as file:
        about = json.loads(file.metadata()["tamiz-calibration"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del about["sha256"]  # read where an interrupted run is continued
    changes: list[tuple[Any, Any]] = [
        ({**about, key: value}, tensors) for key in about for value in DESCRIPTIONS[key]
    ]
    changes += [({k: v for k, v in about.items() if k != key}, tensors) for key in about]
    wholes: list[Any] = [[], "x", None, 1]
    changes += [(whole, tensors) for whole in wholes]
    changes += [
        (about, {**tensors, name: changed_tensor(tensors[name], how)})
        for name, hows in TENSORS.items()
        for how in hows
    ]
    for name in ("sum", "samples", "scales", "run"):
        key = next(k for k in tensors if k.startswith(f"{name}/"))
        changes += [(about, {k: v for k, v in tensors.items() if k != key})]
        for how in ("rank", *([[np.nan, "all"]] if tensors[key].dtype.kind == "f" else [])):
            changes += [(about, {**tensors, key: changed_tensor(tensors[key], how)})]
    for description, arrays in changes:
        text = json.dumps(description)
        safetensors.numpy.save_file(arrays, tmp_path / "d", {"tamiz-calibration": text})
        with pytest.raises(TamizError, match="d: not a complete calibration file: "):
            load(tmp_path / "d", bundle)
    deep = "[" * 10**5 + "]" * 10**5
    safetensors.numpy.save_file(tensors, tmp_path / "d", {"tamiz-calibration": deep})
    with pytest.raises(TamizError, match="d: not a complete calibration file: RecursionError"):
        load(tmp_path / "d", bundle)


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "BF16"])
def test_types_that_numpy_lacks_cost_one_sentence(
    plugins: Plugins, tiny_dense: Path, texts: list[Path], kind: str
) -> None:
    run(tiny_dense, plugins, "c", texts=texts[:1])
    path = tiny_dense.parent / "c"
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + size])
    name = next(key for key in head if key.startswith("samples/"))
    count = math.prod(head[name]["shape"]) // (2 if kind == "BF16" else 1)
    head[name] |= {"dtype": kind, "shape": [count]}
    changed = json.dumps(head).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + data[8 + size :])
    with pytest.raises(TamizError, match="c: not a complete calibration file: "):
        load(path, Bundle.open(tiny_dense))


def test_a_calibration_is_a_regular_file(tiny_dense: Path) -> None:
    with pytest.raises(TamizError, match="/dev/zero: is no regular file"):
        load(Path("/dev/zero"), Bundle.open(tiny_dense))
