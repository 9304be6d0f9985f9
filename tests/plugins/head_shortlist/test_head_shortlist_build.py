"""head-shortlist through build: what it asks of others, and the graph that comes out."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from kit.decoding import stages
from tamiz.api.site import Site
from tamiz.api.statistics import Statistics
from tamiz.api.technique import Fit
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.files.bundle import Bundle
from tamiz.planning.costs import predict, totals
from tamiz.planning.plan import ConflictError, choose, make_plan
from tamiz.plugins import Plugins
from tamiz.reporting.report import Report
from tamiz.runtime.model import Model
from tamiz.survey.survey import survey

pytestmark = pytest.mark.slow

PROMPT = [5, 100, 30, 7]


def built(plugins: Plugins, source: Path, **wanted: Any) -> tuple[Path, Report]:
    """Builds with calibration inputs as a final norm leaves them."""
    techniques = dict(plugins.techniques())
    declared = techniques["head-shortlist"]

    def fit(site: Site, weight: np.ndarray, statistics: Any, config: Any) -> Fit:
        x = np.random.default_rng(0).normal(size=(200, site.in_features)).astype(np.float32)
        return declared.fit(site, weight, Statistics(200, np.ones(len(x.T), np.float32), x), config)

    techniques["head-shortlist"] = dataclasses.replace(declared, fit=fit)
    out = source.parent / f"built-{len(list(source.parent.iterdir()))}"
    return out, build(source, out, choose(techniques, wanted), plugins, Options(max_dppl=None))


def step_logits(path: Path) -> np.ndarray:
    sequence = Model.load(path, threads=1).sequence(32)
    return np.stack([sequence.read(PROMPT).copy(), sequence.step(9).copy()])


def test_a_decode_step_mixes_exact_logits_with_estimates(
    plugins: Plugins, tiny_dense: Path
) -> None:
    base, _ = built(plugins, tiny_dense)
    short, report = built(plugins, tiny_dense, **{"head-shortlist": {"dims": 48, "keep": 64}})
    applied = report.sites["output"].techniques
    assert [entry.name for entry in applied] == ["block-quant", "head-shortlist"]
    assert all(entry.decision.applied for entry in applied)
    assert set(applied[1].metrics) == {"argmax_recall", "top10_recall", "kl"}
    exact, mixed = step_logits(base), step_logits(short)
    assert ((mixed == exact).sum(axis=1) == 64).all()
    assert np.abs(mixed - exact).max() < 0.5 * np.abs(exact).max()


def test_many_positions_are_exact(plugins: Plugins, tiny_dense: Path) -> None:
    base, _ = built(plugins, tiny_dense)
    short, _ = built(plugins, tiny_dense, **{"head-shortlist": {"keep": 32, "rows": 3}})
    exact, mixed = (Model.load(p, 1).logits(np.array([PROMPT])) for p in (base, short))
    np.testing.assert_array_equal(mixed, exact)
    exact, mixed = (Model.load(p, 1).logits(np.array([PROMPT[:3]])) for p in (base, short))
    assert ((mixed == exact).sum(axis=-1) == 32).all()


def test_all_of_the_vocabulary_is_the_exact_head(plugins: Plugins, tiny_dense: Path) -> None:
    base, _ = built(plugins, tiny_dense)
    short, _ = built(plugins, tiny_dense, **{"head-shortlist": {"keep": 10**6}})
    np.testing.assert_array_equal(step_logits(short), step_logits(base))


def test_the_packed_head_stays_the_one_of_the_embedding(plugins: Plugins, tiny_dense: Path) -> None:
    short, _ = built(plugins, tiny_dense, **{"head-shortlist": {"keep": 64}})
    (node,) = ir.load(Bundle.open(short).model).graph
    inputs = {stage.op: stage.inputs for stage in stages(short)}
    assert inputs["HeadShortlist"][1] == inputs["BlockGather"][1]
    assert node.outputs[-1].name == "logits"
    assert node.metadata_props["pkg.tamiz.technique"] == "block-quant,block-quant,head-shortlist"
    assert "output" in node.metadata_props["pkg.tamiz.site"].split(",")


@pytest.mark.parametrize("dims", [48, 64], ids=["signs", "axes alone"])
def test_its_bytes_are_known_before(plugins: Plugins, tiny_dense: Path, dims: int) -> None:
    wanted = {"head-shortlist": {"dims": dims, "keep": 64}}
    _, report = built(plugins, tiny_dense, **wanted)
    found = survey(Bundle.open(tiny_dense), plugins)
    plan = make_plan(found.sites, choose(plugins.techniques(), wanted))
    whole = totals(found, predict(found, plan, context=1))[1]
    assert whole.exact
    assert whole.stored == report.totals.bytes_after


def test_it_requires_packed_tiles(plugins: Plugins, tiny_dense: Path) -> None:
    with pytest.raises(ConflictError, match="head-shortlist requires packed-tiles at output"):
        built(plugins, tiny_dense, **{"head-shortlist": {}, "block-quant": None})


def test_without_calibration_the_model_writes_one(plugins: Plugins, tiny_dense: Path) -> None:
    out = tiny_dense.parent / "out"
    choices = choose(plugins.techniques(), {"head-shortlist": {}})
    report = build(tiny_dense, out, choices, plugins)
    entry = report.sites["output"].techniques[1]
    assert not entry.decision.applied
    assert "of its 17 tiles, so that a shortlist saves nothing" in entry.decision.reason
    assert "HeadShortlist" not in [stage.op for stage in stages(out)]
