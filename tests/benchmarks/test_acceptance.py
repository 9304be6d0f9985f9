"""The benchmark of situations in which techniques hold: its table, and the layers that it makes."""

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from benchmarks.techniques import acceptance, made_layers
from tamiz.plugins import load
from tamiz_ops import pack_int4, unpack_int4
from tamiz_tensor_train.fit import dimensions

pytestmark = pytest.mark.slow


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_layers, "K", 128)
    monkeypatch.setattr(made_layers, "N", 48)
    monkeypatch.setattr(made_layers, "BYTES", 40_000)
    monkeypatch.setattr(made_layers, "RANKS", (2,))
    monkeypatch.setattr(made_layers, "PERSISTENCE", (0.99,))


@pytest.mark.parametrize(
    ("speeds", "loss", "ratio", "holds"),
    [
        ([1.2, 1.1, 1.0], 0.02, 0.5, True),
        ([1.2, 1.09, 1.0], 0.02, 0.5, False),
        ([1.2, 1.1, 1.0], 0.021, 0.5, False),
        ([1.2, 1.1, 1.0], 0.02, 0.51, False),
        ([1.2, 1.1, 1.0], 0.02, None, True),
    ],
)
def test_a_row_holds_within_all_limits(
    speeds: list[float], loss: float, ratio: float | None, holds: bool
) -> None:
    found = acceptance.row(("proc-sparse", "made"), "float32", speeds, loss, ratio)
    assert found["holds"] == holds
    assert found["speed_range"] == [1.0, 1.2]
    assert ("size" in found) == (ratio is not None)
    told = acceptance.line(found)
    assert told.endswith("holds") == holds
    assert "1.00 to 1.20" in told


def test_limits_are_of_the_technique_and_the_baseline() -> None:
    def limits(technique: str, against: str) -> dict[str, float]:
        found: dict[str, float] = acceptance.row((technique, ""), against, [1.0], 0.0, 0.9)[
            "limits"
        ]
        return found

    assert limits("ternary", "int4") == {"speed": 1.1, "loss": 0.02, "size": 1.0}
    assert limits("event-driven", "float32") == {"speed": 1.1, "loss": 0.03, "size": 0.5}


def test_bundles_are_compared_with_both_baselines() -> None:
    found = {name: {"mb": 10.0, "dppl": 0.01, "tok_s": [3.0, 6.0]} for name in acceptance.BUNDLES}
    found["float32"] = {"mb": 40.0, "tok_s": [1.0, 4.0]}
    found["source format"] = {"mb": 8.0, "tok_s": [3.0, 6.0]}
    del found["seedlm-3"]["tok_s"]
    rows = acceptance.bundle_rows(found)
    assert len(rows) == 2 * (len(acceptance.BUNDLES) - 1)
    dense, stored = rows[:2]
    assert (dense["size"], dense["speed"], dense["holds"]) == (0.25, 2.25, True)
    assert (stored["size"], stored["speed"], stored["holds"]) == (1.25, 1.0, False)


def test_bundles_are_configurations_of_their_techniques() -> None:
    techniques = load().techniques()
    for technique, _, fields in acceptance.BUNDLES.values():
        if technique not in techniques:
            pytest.skip(f"not installed: {technique}")
        techniques[technique].config(**fields)


def test_other_rows_of_a_file_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [acceptance.row((name, "made"), "int4", [1.0], 0.0, 1.0) for name in ("tt", "ternary")]
    path = tmp_path / "layers.json"
    acceptance.finish(path, {"threads": 2, "rows": made}, {"model": "made layers"})
    again = acceptance.row(("tt", "again"), "int4", [2.0], 0.0, 1.0)
    monkeypatch.setattr(acceptance, "layer_rows", lambda names, threads: [again])
    acceptance.main(["layers", "tt", "--json", str(path)], standalone_mode=False)
    record = json.loads(path.read_text("utf-8"))
    assert record["benchmark"] == "acceptance"
    assert record["results"]["rows"] == [made[1], again]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("technique", made_layers.LAYERS)
def test_made_layers_give_the_exact_product(technique: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, made_layers.K), np.float32)
    place = made_layers.Place(1, tmp_path, rng, x)
    for layer in made_layers.LAYERS[technique](place):
        for _ in range(40):
            layer.run()
        loss, situation = layer.told()
        assert layer.names[0] == technique
        assert situation
        assert loss < (0.06 if technique == "event-driven" else 1e-3)
        assert layer.size is None or layer.size < 4 * made_layers.K * made_layers.N


@pytest.mark.usefixtures("small")
def test_int4_parts_are_what_is_packed() -> None:
    parts = made_layers.int4_parts(np.random.default_rng(0))
    packed = pack_int4(*parts)
    unpacked = unpack_int4(packed, made_layers.N, made_layers.K)
    np.testing.assert_array_equal(
        made_layers.dequantized(*unpacked), made_layers.dequantized(*parts)
    )


@pytest.mark.usefixtures("small")
def test_repeated_trains_have_weights_of_their_own() -> None:
    n, m = dimensions(made_layers.N, made_layers.K, made_layers.CORES)
    ranks = [1, 2, 2, 1]
    rng = np.random.default_rng(0)
    shapes = zip(ranks[:-1], n, m, ranks[1:], strict=True)
    cores = [rng.standard_normal(shape, np.float32) for shape in shapes]
    one = made_layers.repeated(made_layers.train(cores), 1)
    model = made_layers.repeated(made_layers.train(cores), 3)
    assert len(model.graph.node) == 3 * len(one.graph.node)
    floats = [t.raw_data for t in model.graph.initializer if t.data_type == 1]
    assert len(set(floats)) == len(floats)
    x = rng.standard_normal((1, made_layers.K), np.float32)
    outputs = [
        ort.InferenceSession(made.SerializeToString()).run(None, {"x": x})[0]
        for made in (one, model)
    ]
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)


def test_slow_processes_have_their_correlation() -> None:
    noise = np.random.default_rng(0).standard_normal((4000, 8)).astype(np.float32)
    x = made_layers.autoregressive(noise, 0.9)
    assert x.std() == pytest.approx(1, abs=0.05)
    assert np.mean(x[1:] * x[:-1]) / np.mean(x * x) == pytest.approx(0.9, abs=0.01)
