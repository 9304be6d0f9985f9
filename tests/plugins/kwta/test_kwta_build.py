"""kwta through build: the graph that comes out, and what it computes."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import tamiz_ops
from tamiz.api.site import Site, SiteKind
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.calibration.calibrate import calibrate_bundle
from tamiz.files.bundle import Bundle
from tamiz.planning.choice import Choice
from tamiz.planning.costs import predict
from tamiz.planning.plan import choose, make_plan
from tamiz.plugins import Plugins
from tamiz.reporting.report import Report
from tamiz.runtime.model import Model
from tamiz.survey.survey import survey

pytestmark = pytest.mark.slow

IDS = np.random.default_rng(0).integers(2, 262, 40).tolist()


@pytest.fixture
def calibration(plugins: Plugins, tiny_dense: Path) -> Path:
    file = tiny_dense.parent / "calibration.safetensors"
    calibrate_bundle(tiny_dense, file, plugins)
    return file


def built(
    plugins: Plugins,
    source: Path,
    name: str,
    calibration: Path | None = None,
    max_dppl: float | None = None,
    **techniques: Any,
) -> tuple[Path, Report]:
    out = source.parent / name
    wanted = {key.replace("_", "-"): value for key, value in techniques.items()}
    choices = choose(plugins.techniques(), wanted)
    options = Options(max_dppl=max_dppl, calibration=calibration)
    return out, build(source, out, choices, plugins, options)


def logits(model: Model, chunks: tuple[int, ...]) -> np.ndarray:
    """Logits of the last token, the text read in chunks and steps."""
    sequence = model.sequence(len(IDS))
    sequence.read(IDS[: chunks[0]])
    return np.array([sequence.step(token).copy() for token in IDS[chunks[0] :]])[-1]


def fused_programs(path: Path) -> str:
    nodes = ir.load(path / "model.onnx").graph
    return "\n".join(n.attributes["program"].as_string() for n in nodes if n.op_type == "Fused")


def test_every_linear_gets_a_mask_and_weights_packed_by_channel(
    plugins: Plugins, tiny_dense: Path, calibration: Path
) -> None:
    path, _ = built(plugins, tiny_dense, "kwta", calibration, kwta={"k": 0.7})
    program = fused_programs(path)
    assert program.count("KwtaMask") == program.count("ChannelMatMul") == 14
    assert program.count("BlockMatMul") == 1  # the head, which kwta does not fit
    nodes = ir.load(path / "model.onnx").graph
    signed = [node.metadata_props.get("pkg.tamiz.technique", "") for node in nodes]
    assert any("block-quant" in text and "kwta" in text for text in signed)


@pytest.mark.parametrize(
    ("fields", "scale_bits"), [({}, 16), ({"renorm": True}, 16), ({"select": "topk"}, 8)]
)
def test_keeping_all_is_int4(
    plugins: Plugins, tiny_dense: Path, calibration: Path, fields: dict[str, Any], scale_bits: int
) -> None:
    packing = {"scale_bits": scale_bits}
    int4, _ = built(plugins, tiny_dense, "int4", block_quant=packing)
    fields = {"k": 1.0, "center": False, **fields}
    kept, _ = built(plugins, tiny_dense, "kwta", calibration, block_quant=packing, kwta=fields)
    assert fused_programs(kept).count("scale_bits=8") == (14 if scale_bits == 8 else 0)
    np.testing.assert_array_equal(logits(Model.load(kept), (20,)), logits(Model.load(int4), (20,)))


def test_the_result_does_not_depend_on_how_tokens_are_read(
    plugins: Plugins, tiny_dense: Path, calibration: Path
) -> None:
    fields = {"k": 0.5, "center": True}
    path, _ = built(plugins, tiny_dense, "kwta", calibration, kwta=fields)
    model = Model.load(path)
    expected = logits(model, (3,))
    np.testing.assert_allclose(logits(model, (30,)), expected, rtol=0, atol=2e-4)


def test_renorm_scales_what_the_product_multiplies(
    plugins: Plugins, tiny_dense: Path, calibration: Path
) -> None:
    path, _ = built(plugins, tiny_dense, "kwta", calibration, kwta={"k": 0.5, "renorm": True})
    for program in fused_programs(path).splitlines():
        if program.startswith("KwtaMask"):
            assert "renorm=1" in program
            # The mask, what is multiplied, and at attn_o the bias that belongs to it.
            assert len(program.split("->")[1].split()) in (2, 3)
    assert fused_programs(path).count("renorm=1") == 14


def test_keep_ratio_is_what_was_asked_for(
    plugins: Plugins, tiny_dense: Path, calibration: Path
) -> None:
    for select, tolerance in (("threshold", 0.1), ("topk", 0.01)):
        fields = {"k": 0.5, "select": select, "first": 0}
        path, _ = built(plugins, tiny_dense, select, calibration, kwta=fields)
        model = Model.load(path)
        logits(model, (1,))
        counted = list(tamiz_ops.metrics(model.session).values())
        kept = sum(node.get("kwta.kept", 0) for node in counted)
        blocks = sum(node.get("kwta.blocks", 0) for node in counted)
        assert abs(kept / blocks - 0.5) <= tolerance
        read = sum(node.get("matmul.bytes_read", 0) for node in counted if "kwta.kept" in node)
        dense = sum(node.get("matmul.bytes_dense", 0) for node in counted if "kwta.kept" in node)
        assert 0.55 < read / dense < 0.65 + tolerance  # half of 80 %, and the scales


@pytest.mark.parametrize("scale_bits", [16, 8])
def test_the_plan_predicts_the_bytes_that_masked_products_read(
    plugins: Plugins, tiny_dense: Path, calibration: Path, scale_bits: int
) -> None:
    fields = {"k": 0.5, "select": "topk", "first": 0, "weighted": False, "center": False}
    bits = {"scale_bits": scale_bits}
    path, _ = built(plugins, tiny_dense, "read", calibration, kwta=fields, block_quant=bits)
    model = Model.load(path)
    tamiz_ops.reset_metrics(model.session)
    logits(model, (1,))
    counted = [n for n in tamiz_ops.metrics(model.session).values() if "kwta.kept" in n]
    found = survey(Bundle.open(tiny_dense), plugins)
    choices = choose(plugins.techniques(), {"kwta": fields, "block-quant": bits})
    predictions = predict(found, make_plan(found.sites, choices), 1)
    planned = sum(p.after.read for p in predictions if p.plan.site.kind is SiteKind.LINEAR)
    assert sum(n["matmul.bytes_read"] for n in counted) / len(IDS) == pytest.approx(
        planned, rel=0.01
    )


def test_a_site_that_would_keep_much_is_plain_int4(
    plugins: Plugins, tiny_dense: Path, calibration: Path
) -> None:
    path, report = built(plugins, tiny_dense, "none", calibration, kwta={"strength": 0.01})
    program = fused_programs(path)
    assert "KwtaMask" not in program
    assert "ChannelMatMul" not in program
    refusal = r"it would keep 0\.9\d of its inputs, more than max_keep, 0\.75"
    assert re.search(refusal, report.model_dump_json())
    int4, _ = built(plugins, tiny_dense, "int4")
    np.testing.assert_array_equal(logits(Model.load(path), (20,)), logits(Model.load(int4), (20,)))
    some, _ = built(plugins, tiny_dense, "some", calibration, kwta={})
    every, _ = built(plugins, tiny_dense, "every", calibration, kwta={"max_keep": 1.0})
    assert 0 < fused_programs(some).count("KwtaMask") < 14
    assert fused_programs(every).count("KwtaMask") == 14


def test_what_an_input_predicts_moves_its_thresholds(
    plugins: Plugins, tiny_dense: Path, calibration: Path
) -> None:
    path, _ = built(plugins, tiny_dense, "every", calibration, kwta={"max_keep": 1.0})
    masks = [line for line in fused_programs(path).splitlines() if line.startswith("KwtaMask")]
    assert 0 < sum("offset=" in line for line in masks) <= 14
    model = Model.load(path)
    np.testing.assert_allclose(logits(model, (30,)), logits(model, (3,)), rtol=0, atol=2e-4)
    path, _ = built(plugins, tiny_dense, "site", calibration, kwta={"k": 0.7})
    assert "offset=" not in fused_programs(path)


@pytest.mark.parametrize(
    ("fields", "weighed"),
    [({}, True), ({"select": "topk"}, False), ({"select": "mass"}, False), ({"k": 0.7}, False)],
    ids=str,
)
def test_inputs_are_weighed_where_a_fit_reads_that(
    plugins: Plugins, tiny_dense: Path, calibration: Path, fields: dict[str, Any], weighed: bool
) -> None:
    done = set()
    choices = choose(plugins.techniques(), {"kwta": fields})
    options = Options(max_dppl=None, calibration=calibration)
    out = tiny_dense.parent / "out"
    build(tiny_dense, out, choices, plugins, options, progress=lambda what, *_: done.add(what))
    assert ("weigh inputs" in done) == weighed


def test_targets_and_sites_without_skippable_weights(
    plugins: Plugins, tiny_dense: Path, calibration: Path
) -> None:
    fields = {"k": 0.7, "target": "mlp"}
    path, _ = built(plugins, tiny_dense, "mlp", calibration, kwta=fields)
    assert fused_programs(path).count("KwtaMask") == 6


def test_the_strength_is_raised_to_the_budget_without_a_calibration(
    plugins: Plugins, tiny_dense: Path
) -> None:
    path, report = built(plugins, tiny_dense, "auto", None, 0.02, kwta={})
    gate = report.gate
    assert gate.text == "domains"
    held = [trial for trial in gate.trials if trial.holds]
    assert held
    assert gate.result == held[-1]
    assert held[-1].dppl <= 0.02
    assert held[-1].strength == max(trial.strength for trial in held)
    assert "KwtaMask" in fused_programs(path)
    assert Bundle.open(path).manifest.techniques["kwta"]


@pytest.mark.parametrize("block", [1, 4, 64])
def test_the_plan_tells_block_quant_of_the_mask(plugins: Plugins, block: int) -> None:
    site = Site("layers.0.ffn_down", SiteKind.LINEAR, "n", 0, "ffn_down", "w", 64, 64)
    alone = make_plan([site], choose(plugins.techniques()))
    assert [told(choice) for choice in alone.sites[0].choices] == [None]
    both = make_plan([site], choose(plugins.techniques(), {"kwta": {"block": block}}))
    quant, kwta = both.sites[0].choices
    assert told(quant) == block
    assert kwta.technique.name == "kwta"


def told(choice: Choice) -> int | None:
    block: int | None = choice.config.model_dump()["mask_block"]
    return block
