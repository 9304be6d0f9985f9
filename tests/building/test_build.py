import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from tamiz.api import GraphEditor
from tamiz.api.site import Site, SiteKind
from tamiz.api.technique import (
    Claim,
    Cost,
    Fit,
    FitError,
    Mode,
    Resource,
    Technique,
    TechniqueConfig,
)
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.calibration.calibrate import calibrate_bundle
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError, UnwritableError
from tamiz.interface import metadata
from tamiz.planning.plan import ConflictError, choose
from tamiz.plugins import Plugins
from tamiz.reporting.report import Report
from tamiz.survey.survey import reading, survey


class ScaleConfig(TechniqueConfig):
    factor: float = 1.0


def rescaled(name: str = "rescaled", **changes: Any) -> Technique:
    """A technique that stores the weight times a factor; exact for the factor 1."""

    def fit(site: Site, weight: np.ndarray, statistics: Any, config: ScaleConfig) -> Fit:
        difference = abs(1 - config.factor)
        return Fit({"weight": weight * np.float32(config.factor)}, {}, {"rel_l2": difference}, 32)

    def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
        linear = GraphEditor(model).linear(site)
        stored = fit.tensors["weight"] if site.transposed else fit.tensors["weight"].T
        weight = GraphEditor(model).constant(f"{site.weight}.{name}", np.ascontiguousarray(stored))
        linear.node.replace_input_with(list(linear.node.inputs).index(linear.weight), weight)
        return [linear.node]

    declared: dict[str, Any] = {
        "name": name,
        "version": "7",
        "summary": "test",
        "config": ScaleConfig,
        "site_kinds": frozenset({SiteKind.LINEAR}),
        "claims": (Claim(Resource.WEIGHTS, Mode.EXCLUSIVE),),
        "fit": fit,
        "rewrite": rewrite,
        "cost": lambda site, config: Cost(0, 0),
    }
    return Technique(**(declared | changes))


def run(
    plugins: Plugins,
    source: Path,
    techniques: list[Technique],
    wanted: Mapping[str, Mapping[str, Any]],
    **options: Any,
) -> Report:
    named = {technique.name: technique for technique in techniques}
    return build(source, source.parent / "out", choose(named, wanted), plugins, Options(**options))


def test_without_techniques_the_weights_stay_and_the_logits_too(
    plugins: Plugins, tiny_dense: Path
) -> None:
    report = run(plugins, tiny_dense, [], {})
    out = Bundle.open(tiny_dense.parent / "out")
    assert out.manifest.kind == "built"
    assert out.manifest.kv_cache == "shared"
    assert set(Bundle.open(tiny_dense).manifest.files) < set(out.manifest.files)
    assert report.totals.replaced == 0
    assert report.check["max_relative_error"] < 1e-5
    assert report.check["top1_agreement"] == 1


def test_a_technique_rewrites_its_sites_and_signs_the_nodes(
    plugins: Plugins, tiny_dense: Path
) -> None:
    report = run(plugins, tiny_dense, [rescaled()], {"rescaled": {}})
    out = Bundle.open(tiny_dense.parent / "out")
    assert out.manifest.techniques == {"rescaled": {"version": "7", "config": {"factor": 1.0}}}
    assert out.manifest.policy == report.build.policy_hash
    assert report.check["max_relative_error"] < 1e-5
    signed = [n for n in ir.load(out.model).graph if metadata.TECHNIQUE in n.metadata_props]
    assert len(signed) == report.totals.replaced == 14
    for node in signed:
        assert node.metadata_props[metadata.TECHNIQUE] == "rescaled"
        assert node.metadata_props[metadata.VERSION] == "7"
        assert node.metadata_props[metadata.POLICY] == out.manifest.policy
        layer = node.metadata_props[metadata.SITE].split(".")[1]
        assert node.metadata_props[metadata.LAYER] == layer


def test_what_the_gate_refuses_stays_dense(plugins: Plugins, tiny_dense: Path) -> None:
    report = run(plugins, tiny_dense, [rescaled()], {"rescaled": {"factor": 1.5}})
    assert report.totals.replaced == 0
    assert report.check["max_relative_error"] < 1e-5
    site = report.sites["layers.0.ffn_up"]
    assert site.bytes_after == site.bytes_before
    decision = site.techniques[0].decision
    assert not decision.applied
    assert decision.reason == "refused: rel_l2 is 0.5000, the gate accepts at most 0.2"


def test_what_cannot_be_fitted_stays_dense(plugins: Plugins, tiny_dense: Path) -> None:
    def refuse(*_: Any) -> Fit:
        raise FitError("it holds weights that are not finite")

    report = run(plugins, tiny_dense, [rescaled(fit=refuse)], {"rescaled": {}})
    (attempt,) = report.sites["layers.1.attn_k"].techniques
    assert attempt.decision.reason == "refused: it holds weights that are not finite"


def marked(name: str, refusal: str | None = None) -> Technique:
    """One that owns nothing and changes nothing at its sites, or refuses to."""

    def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
        if refusal is not None:
            raise FitError(refusal)
        return [next(node for node in model.graph if node.name == site.node)]

    return rescaled(
        name,
        claims=(Claim(Resource.CANDIDATES, Mode.NARROWING),),
        fit=lambda *_: Fit({}, {}, {"exact": 1.0}, 0.0),
        rewrite=rewrite,
        cost=None,
    )


def test_a_node_tells_all_techniques_that_rewrote_it(plugins: Plugins, tiny_dense: Path) -> None:
    refusing = marked("third", refusal="the node does not want it")
    techniques = [marked("second"), rescaled("first"), refusing, marked("zero")]
    report = run(plugins, tiny_dense, techniques, {t.name: {} for t in techniques})
    model = ir.load(Bundle.open(tiny_dense.parent / "out").model)
    signed = [n.metadata_props for n in model.graph if metadata.TECHNIQUE in n.metadata_props]
    assert len(signed) == 14
    for node in signed:
        assert node[metadata.TECHNIQUE] == "first,second"
        assert node[metadata.VERSION] == "7,7"
    # A rewrite that refuses leaves the site to those before it; those after it do not follow.
    site = report.sites["layers.0.ffn_up"]
    decisions = {t.name: t.decision for t in site.techniques}
    assert [name for name, made in decisions.items() if made.applied] == ["first", "second"]
    assert decisions["third"].reason == "refused: the node does not want it"
    assert decisions["zero"].reason == "refused: third, which comes before it, was refused"


def test_conflicts_are_an_error_or_dropped(plugins: Plugins, tiny_dense: Path) -> None:
    both = [rescaled("one"), rescaled("two")]
    with pytest.raises(ConflictError, match="one and two both claim the weights") as caught:
        run(plugins, tiny_dense, both, {"one": {}, "two": {}})
    assert len(caught.value.conflicts) == 14
    assert not (tiny_dense.parent / "out").exists()
    report = run(plugins, tiny_dense, both, {"one": {}, "two": {}}, on_conflict="drop")
    assert len(report.dropped) == 14
    names = [t.name for t in report.sites["layers.0.ffn_up"].techniques]
    assert names == ["one"]


def test_a_conflict_is_reported_before_a_text_is_written(
    plugins: Plugins, tiny_dense: Path
) -> None:
    both = {name: rescaled(name, calibrated=True) for name in ("one", "two")}
    chosen, steps = choose(both, {"one": {}, "two": {}}), list[str]()
    out = tiny_dense.parent / "out"
    with pytest.raises(ConflictError):
        build(tiny_dense, out, chosen, plugins, progress=lambda what, *_: steps.append(what))
    assert steps == ["recognise"]


def test_what_judges_a_build_weighs_no_input(
    plugins: Plugins, tiny_dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WeighedConfig(ScaleConfig):
        @property
        def reads_sensitivity(self) -> bool:
            return True

    read: list[list[int]] = []

    def sensitivities(found: Any, windows: list[list[int]], *_: Any) -> dict[str, Any]:
        read.extend(windows)
        return {}

    (tmp_path / "text").write_text("hello world, this is a sieve. " * 400)
    known = calibrate_bundle(tiny_dense, tmp_path / "known", plugins, texts=[tmp_path / "text"])
    monkeypatch.setattr("tamiz.survey.gradients.sensitivities", sensitivities)
    weighed = rescaled(config=WeighedConfig)
    run(plugins, tiny_dense, [weighed], {"rescaled": {}}, calibration=tmp_path / "known")
    assert known.held_out
    assert read == [list(window.tokens) for window in known.fitting]


def test_a_model_that_gives_nonsense_is_not_written(plugins: Plugins, tiny_dense: Path) -> None:
    def nonsense(site: Site, weight: np.ndarray, *_: Any) -> Fit:
        return Fit({"weight": np.full_like(weight, np.nan)}, {}, {}, 32)

    with pytest.raises(TamizError, match="not finite"):
        run(plugins, tiny_dense, [rescaled(fit=nonsense)], {"rescaled": {}}, max_dppl=None)
    assert not (tiny_dense.parent / "out").exists()


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (RuntimeError("crash"), True),
        (OSError(28, "No space left on device"), True),
        (UnwritableError("out: cannot be written"), True),
        (TamizError("bad input"), False),
    ],
)
def test_what_was_fitted_survives_a_crash(
    plugins: Plugins,
    tiny_dense: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    kept: bool,
) -> None:
    fitted = []

    def fit(site: Site, weight: np.ndarray, *_: Any) -> Fit:
        fitted.append(site.id)
        return Fit({"weight": weight}, {}, {"exact": 1.0}, 32)

    def fail(*_: Any, **_options: Any) -> None:
        raise error

    technique = rescaled(fit=fit)
    monkeypatch.setattr("tamiz.building.build.write_model", fail)
    with pytest.raises((type(error), TamizError)):
        run(plugins, tiny_dense, [technique], {"rescaled": {}})
    monkeypatch.undo()
    assert (tiny_dense.parent / ".out.work").exists() == kept
    run(plugins, tiny_dense, [technique], {"rescaled": {}}, resume=True)
    assert len(fitted) == (14 if kept else 28)
    assert sorted(os.listdir(tiny_dense.parent)) == ["out", tiny_dense.name]


def test_a_model_that_does_not_load_is_not_written(plugins: Plugins, tiny_dense: Path) -> None:
    def cut(site: Site, weight: np.ndarray, *_: Any) -> Fit:
        return Fit({"weight": weight[:-1, :-1]}, {}, {}, 32)

    with pytest.raises(RuntimeError, match="the built model does not run"):
        run(plugins, tiny_dense, [rescaled(fit=cut)], {"rescaled": {}})
    assert not (tiny_dense.parent / "out").exists()


def test_equal_builds_have_equal_bytes(plugins: Plugins, tiny_dense: Path) -> None:
    contents = []
    for _ in range(2):
        run(plugins, tiny_dense, [rescaled()], {"rescaled": {}})
        out = tiny_dense.parent / "out"
        contents.append({path.name: path.read_bytes() for path in sorted(out.iterdir())})
    assert contents[0] == contents[1]


def test_large_constants_lie_on_pages(plugins: Plugins, tiny_dense: Path) -> None:
    run(plugins, tiny_dense, [], {})
    model = ir.load(tiny_dense.parent / "out" / "model.onnx")
    tensors = [value.const_value for value in model.graph.initializers.values()]
    external = [tensor for tensor in tensors if isinstance(tensor, ir.ExternalTensor)]
    assert external
    assert all(tensor.offset is not None and tensor.offset % 4096 == 0 for tensor in external)


def test_a_built_bundle_is_not_built_again(plugins: Plugins, tiny_dense: Path) -> None:
    run(plugins, tiny_dense, [], {})
    with pytest.raises(TamizError, match="is a built bundle, expected a dense one"):
        build(tiny_dense.parent / "out", tiny_dense.parent / "again", [], plugins)


@pytest.mark.parametrize("technique", [[], [rescaled()]])
def test_weights_behind_links_are_read(
    plugins: Plugins, tiny_dense: Path, technique: list[Technique]
) -> None:
    os.link(tiny_dense / "model.onnx.data", tiny_dense / "link")
    (tiny_dense / "model.onnx.data").unlink()
    (tiny_dense / "model.onnx.data").symlink_to("link")
    run(plugins, tiny_dense, technique, {t.name: {} for t in technique})
    assert Bundle.open(tiny_dense.parent / "out").manifest.kind == "built"


def test_weights_that_are_cut_off_while_they_are_read_cost_one_sentence(
    plugins: Plugins, tiny_dense: Path
) -> None:
    found = survey(Bundle.open(tiny_dense), plugins)
    os.truncate(tiny_dense / "model.onnx.data", 8)
    site = next(site for site in found.sites if site.weight is not None)
    with pytest.raises(TamizError, match=r"model\.onnx: "), reading(found.bundle):
        found.model.graph.initializers[site.weight].const_value.numpy()


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"none": {}}, "unknown technique 'none', installed: rescaled"),
        ({"rescaled": {"fctr": 1}}, "rescaled: unknown setting 'fctr'; did you mean 'factor'"),
        ({"rescaled": {"factor": "x"}}, "--rescaled-factor=x: expected a valid number"),
        ({"rescaled": {"factor": float("inf")}}, "--rescaled-factor=inf: expected a finite number"),
    ],
)
def test_refuses_choices_that_are_not_declared(
    wanted: dict[str, dict[str, Any]], reason: str
) -> None:
    with pytest.raises(TamizError, match=reason):
        choose({"rescaled": rescaled()}, wanted)


@pytest.mark.parametrize("function", ["fit", "dequantize", "rewrite"])
def test_a_function_that_raises_is_blamed_on_its_technique(
    plugins: Plugins, tiny_dense: Path, function: str
) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("no luck")

    changes: dict[str, Any] = {function: broken}
    technique = rescaled(**changes)
    expected = (
        "^technique rescaled is broken and can be switched off: it raised KeyError: 'no luck'"
    )
    with pytest.raises(TamizError, match=expected):
        run(plugins, tiny_dense, [technique], {"rescaled": {}})
    assert not (tiny_dense.parent / "out").exists()
