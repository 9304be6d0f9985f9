"""seed-delta through build, rewrite and resolver."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import tamiz_ops
from kit.decoding import stages
from tamiz.api.editing import GraphEditor
from tamiz.api.linear import weight_array
from tamiz.api.ports import input_of
from tamiz.api.site import SiteKind
from tamiz.building.build import build
from tamiz.files.bundle import Bundle
from tamiz.planning.plan import ConflictError, choose, make_plan
from tamiz.plugins import Plugins
from tamiz.survey.survey import survey
from tamiz_seed_delta.config import SeedDeltaConfig
from tamiz_seed_delta.fit import fit
from tamiz_seed_delta.plugin import SEED_DELTA

pytestmark = pytest.mark.slow


def wanted(**fields: Any) -> dict[str, Any]:
    return {"seed-delta": fields, "block-quant": None}


@pytest.mark.parametrize("base", ["none", "xor-circulant", "hadamard", "seedlm"])
def test_everything_stored_as_int8_is_close(plugins: Plugins, tiny_dense: Path, base: str) -> None:
    out = tiny_dense.parent / "built"
    choices = choose(
        plugins.techniques(), wanted(base=base, base_bits=3, k=4096, perm_trials=1, target="all")
    )
    report = build(tiny_dense, out, choices, plugins)
    assert report.check["kl_mean"] < 1e-3
    assert [stage.op for stage in stages(out)].count("SeedDeltaMatMul") == 2 * 7 + 1  # the head


def test_two_builds_have_the_same_bytes(plugins: Plugins, tiny_dense: Path) -> None:
    choices = choose(plugins.techniques(), wanted(base="hadamard", scheme="coo", k=4096))
    data = []
    for name in ("one", "two"):
        build(tiny_dense, tiny_dense.parent / name, choices, plugins)
        data.append((tiny_dense.parent / name / "model.onnx.data").read_bytes())
    assert data[0] == data[1]


@pytest.mark.parametrize("strip", [True, False])
def test_dense_stays_as_the_fallback_where_it_is_not_stripped(
    plugins: Plugins, tiny_dense: Path, strip: bool
) -> None:
    found = survey(Bundle.open(tiny_dense), plugins)
    site = next(site for site in found.sites if site.tensor == "ffn_down")
    linear = GraphEditor(found.model).linear(site)
    dense = np.array(weight_array(linear, site))
    made = fit(site, dense, None, SeedDeltaConfig(k=4096))
    # scales of the first tile that overflow, whatever x is
    broken = made.tensors["deltas"].copy()
    broken[4 + 512 : 4 + 544].view("<f2")[:] = np.inf
    made = replace(made, tensors={**made.tensors, "deltas": broken}, strip=strip)
    (node,) = SEED_DELTA.rewrite(site, made, found.model)
    assert node.op_type == "SeedDeltaMatMul"
    stored = linear.weight if not strip else None
    assert input_of(node, "dense") is stored
    x = np.random.default_rng(0).standard_normal((2, site.in_features)).astype(np.float32)
    arrays: list[Any] = [x, *(value and value.const_value.numpy() for value in node.inputs[1:])]
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    if strip:
        with pytest.raises(ValueError, match="no dense weight to fall back to"):
            tamiz_ops.run("SeedDeltaMatMul", arrays, **attributes)
    else:
        y = tamiz_ops.run("SeedDeltaMatMul", arrays, **attributes)[0]
        np.testing.assert_allclose(y, x @ dense.T, atol=1e-5)


def test_three_owners_of_the_weights_are_in_conflict(plugins: Plugins, tiny_dense: Path) -> None:
    sites = survey(Bundle.open(tiny_dense), plugins).sites
    choices = choose(
        plugins.techniques(),
        {"seed-delta": {"target": "all"}, "proc-sparse": {}, "block-quant": {"bits": 8}},
    )
    with pytest.raises(ConflictError) as caught:
        make_plan(sites, choices)
    for site in sites:
        pairs = {c.techniques for c in caught.value.conflicts if c.site == site.id}
        rivals = {("block-quant", "seed-delta")} if site.kind is SiteKind.HEAD else set()
        if site.kind is SiteKind.LINEAR:
            names = ("block-quant", "proc-sparse", "seed-delta")
            rivals = {(a, b) for a in names for b in names if a < b}
        assert pairs == rivals, site.id
    assert {conflict.rule for conflict in caught.value.conflicts} == {"one-owner"}
    for plan in make_plan(sites, choices, "drop").sites:
        assert len(plan.choices) <= 1, plan.site.id


def test_the_built_model_runs_in_a_session_with_and_without_a_cache(
    plugins: Plugins, tiny_dense: Path
) -> None:
    out = tiny_dense.parent / "built"
    build(tiny_dense, out, choose(plugins.techniques(), wanted(base="xor-circulant")), plugins)
    options = ort.SessionOptions()
    tamiz_ops.register(options)
    path = str(Bundle.open(out).model)
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    ids = np.array([[3, 5, 9]])
    feeds: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.arange(3)[None],
    }
    for value in session.get_inputs():
        if value.name.startswith("past"):
            feeds[value.name] = np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
    assert np.isfinite(session.run(None, feeds)[0]).all()
    counted = tamiz_ops.metrics(session)
    assert sum(node.get("seed_delta.fallbacks", 0) for node in counted.values()) == 0
    assert sum(node.get("seed_delta.bytes_read", 0) for node in counted.values()) > 0
