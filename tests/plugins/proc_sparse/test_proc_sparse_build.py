"""proc-sparse through build and resolver."""

from pathlib import Path
from typing import Any

import pytest

from kit.decoding import stages
from tamiz.api.site import Site, SiteKind
from tamiz.api.technique import Claim, Mode, Resource, Technique, TechniqueConfig
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.files.bundle import Bundle
from tamiz.planning.choice import Choice
from tamiz.planning.costs import predict, totals
from tamiz.planning.plan import ConflictError, choose, make_plan
from tamiz.planning.resolver import resolve
from tamiz.plugins import Plugins
from tamiz.survey.survey import survey
from tamiz_proc_sparse.config import ProcSparseConfig
from tamiz_proc_sparse.plugin import PROC_SPARSE

pytestmark = pytest.mark.slow

LOSSLESS: dict[str, Any] = {"shed_eps": 0}


def test_a_q4_1_model_loses_nothing_when_everything_is_stored(
    plugins: Plugins, tiny_dense: Path
) -> None:
    out = tiny_dense.parent / "built"
    choices = choose(plugins.techniques(), {"proc-sparse": LOSSLESS, "block-quant": None})
    report = build(tiny_dense, out, choices, plugins)
    assert report.check["max_relative_error"] < 1e-3
    assert report.check["top1_agreement"] == 1
    assert [stage.op for stage in stages(out)].count("ProcSparseMatMul") == 2 * 7


def test_two_builds_have_the_same_bytes(plugins: Plugins, tiny_dense: Path) -> None:
    fields = {"watermark": 40, "base_scale": 0.1}
    choices = choose(plugins.techniques(), {"proc-sparse": fields, "block-quant": None})
    data = []
    for name in ("one", "two"):
        build(tiny_dense, tiny_dense.parent / name, choices, plugins)
        data.append((tiny_dense.parent / name / "model.onnx.data").read_bytes())
    assert data[0] == data[1]


@pytest.mark.parametrize("sheds", [False, True])
def test_the_plan_is_exact_where_nothing_is_shed(
    plugins: Plugins, tiny_dense: Path, sheds: bool
) -> None:
    out = tiny_dense.parent / "built"
    fields = {"shed_eps": 0.1 if sheds else 0, "block": 32}
    choices = choose(plugins.techniques(), {"proc-sparse": fields, "block-quant": None})
    found = survey(Bundle.open(tiny_dense), plugins)
    predictions = predict(found, make_plan(found.sites, choices), context=0)
    assert totals(found, predictions)[1].exact != sheds
    report = build(tiny_dense, out, choices, plugins, Options(max_dppl=None))
    for prediction in predictions:
        site, after = prediction.plan.site, prediction.after
        if site.kind is SiteKind.LINEAR:
            stored = report.sites[site.id].bytes_after
            assert stored == after.stored or (sheds and stored < after.stored)
            assert after.exact != sheds


def test_one_weight_has_one_owner(plugins: Plugins, tiny_dense: Path) -> None:
    sites = survey(Bundle.open(tiny_dense), plugins).sites
    wanted = {"proc-sparse": LOSSLESS, "block-quant": {"bits": 8}}
    choices = choose(plugins.techniques(), wanted)
    with pytest.raises(ConflictError) as caught:
        make_plan(sites, choices)
    linears = {site.id for site in sites if site.kind is SiteKind.LINEAR}
    assert {conflict.site for conflict in caught.value.conflicts} == linears
    assert {conflict.rule for conflict in caught.value.conflicts} == {"one-owner"}
    for plan in make_plan(sites, choices, "drop").sites:
        owners = [choice.technique.name for choice in plan.choices]
        assert len(owners) <= 1, plan.site.id


@pytest.mark.parametrize(("mask_block", "agree"), [(64, True), (32, True), (8, False)])
def test_masks_work_in_multiples_of_its_blocks(mask_block: int, agree: bool) -> None:
    def unused(*_: Any) -> Any:
        raise AssertionError("the resolver runs nothing")

    mask = Technique(
        name="mask",
        version="1",
        summary="",
        config=TechniqueConfig,
        site_kinds=frozenset({SiteKind.LINEAR}),
        claims=(Claim(Resource.CANDIDATES, Mode.NARROWING, block=mask_block),),
        requires=frozenset({"structural-blocks", "skippable-blocks"}),
        fit=unused,
        rewrite=unused,
    )
    site = Site("s", SiteKind.LINEAR, "node", tensor="ffn_up")
    chosen = [Choice(PROC_SPARSE, ProcSparseConfig()), Choice(mask, TechniqueConfig())]
    conflicts = resolve([site], {"s": chosen}).conflicts
    assert [conflict.rule for conflict in conflicts] == ([] if agree else ["one-partition"])
