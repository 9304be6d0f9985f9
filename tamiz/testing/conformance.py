"""The contract of a technique as tests.

A subclass names the technique under test, and pytest collects the rest:

    class TestLowRank(TechniqueTests):
        @pytest.fixture
        def case(self) -> Case:
            return Case("low-rank", full_budget={"energy": 1.0})

The technique is found through its entry point, so its plugin has to be installed. It is tried on
the tiny llama (`tamiz.testing.tiny_llama`), alone or beside what it requires.
"""

from __future__ import annotations

import inspect
import json
import math
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tamiz.api.cost import Cost
from tamiz.api.site import TENSOR_IDS, SiteKind
from tamiz.api.technique import Fit, FitError, Resource, Technique
from tamiz.planning.plan import ConflictError
from tamiz.plugins import load
from tamiz.testing.elsewhere import fit_in_another_process
from tamiz.testing.tiny_llama import export_tiny_llama
from tamiz.testing.trial import Case, Trial, gemm, interface, run, same

#: What the written model may differ by from the exact one, of the largest logit: activations are
#: rounded to 16 bits.
_ROUNDING = 1e-3
#: The same of one product, of Σ |x| |w|.
_PRODUCT_ROUNDING = 2e-4

#: Tokens that a step attends to when its effect on the cost is computed.
_CONTEXT = 128

#: By what defines the case.
_TRIALS: dict[str, Trial] = {}


class TechniqueTests:
    """What every technique has to hold. Subclasses are named ``Test…`` and define `case`."""

    @pytest.fixture
    def case(self) -> Case:
        """The technique under test."""
        raise NotImplementedError("define the fixture `case` in the subclass")

    @pytest.fixture
    def trial(self, case: Case, tmp_path_factory: pytest.TempPathFactory) -> Trial:
        """The technique on the tiny llama, made once for all tests."""
        key = repr(case)
        if key not in _TRIALS:
            _TRIALS[key] = _make_trial(case, tmp_path_factory.mktemp(case.technique))
        return _TRIALS[key]

    def test_the_declaration_is_complete(self, trial: Trial) -> None:
        """Everything that flags, schema and docs are made of is there."""
        technique = trial.technique
        assert technique.version, "has no version"
        assert technique.summary.endswith("."), "its summary is no sentence"
        assert technique.site_kinds, "acts on no kind of site"
        assert technique.claims, "claims nothing, so it is in conflict with nothing"
        assert technique.tensors <= set(TENSOR_IDS), "names tensors that no site has"
        if _owns_weights(technique):
            assert technique.cost is not None, "owns weights but declares no cost"
        for metric in technique.metrics:
            assert metric.unit, f"metric {metric.name} has no unit"
            assert metric.description, f"metric {metric.name} has no description"

    def test_every_field_is_documented_and_has_a_range(self, trial: Trial) -> None:
        """A field has a description, and a bound if it is a number."""
        config = trial.technique.config
        assert config.__doc__, "its configuration has no docstring"
        for name, schema in config.model_json_schema().get("properties", {}).items():
            assert schema.get("description"), f"field {name} has no description"
            for part in schema.get("anyOf", [schema]):
                if part.get("type") in ("integer", "number") and "enum" not in part:
                    bounds = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}
                    assert bounds & set(part), f"field {name} is a number without a bound"

    def test_it_has_a_readme(self, case: Case, trial: Trial) -> None:
        """A README lies beside the plugin's module, or where the case says."""
        name = trial.technique.name
        [plugin] = [p for p in trial.plugins.installed if name in {t.name for t in p.techniques}]
        module = import_module(plugin.target.partition(":")[0])
        beside = Path(inspect.getfile(module)).with_name("README.md")
        path = case.readme or beside
        assert path.is_file(), f"{path} is not there"
        text = path.read_text("utf-8")
        assert trial.technique.name in text, f"{path} does not name the technique"

    def test_fits_are_plain_data(self, trial: Trial) -> None:
        """Arrays that can be kept in a file, scalars, finite metrics."""
        for site, fit in trial.fits():
            for role, tensor in fit.tensors.items():
                assert type(tensor) is np.ndarray, f"{site.id}: {role} is no NumPy array"
                assert tensor.dtype.kind in "biuf", f"{site.id}: {role} is {tensor.dtype}"
            json.dumps(dict(fit.attributes))
            for name, value in fit.metrics.items():
                assert math.isfinite(value), f"{site.id}: {name} is {value}"
            if _owns_weights(trial.technique):
                bits = 8 * _stored(fit) / (site.in_features * site.out_features)
                assert fit.bits_per_weight == pytest.approx(bits), site.id

    def test_fits_are_deterministic(self, trial: Trial) -> None:
        """Twice here and once in a process of its own: the same bits."""
        first = [fit for _, fit in trial.fits()]
        again = [fit for _, fit in trial.fits()]
        elsewhere = fit_in_another_process(trial.technique.fit, trial.arguments())
        for (site, _), one, *others in zip(trial.fits(), first, again, elsewhere, strict=True):
            assert all(same(one, other) for other in others), f"{site.id}: fits differ"

    def test_the_cost_is_what_is_stored(self, trial: Trial) -> None:
        """`tamiz plan` predicts the bytes before the fit; an upper bound if data decide."""
        cost, effect = trial.technique.cost, trial.technique.effect
        if cost is None and effect is None:
            pytest.skip("declares neither cost nor effect")
        for site, fit in trial.fits():
            cost_before = Cost(0, 0) if cost is None else cost(site, trial.config)
            if effect is not None:
                cost_before = effect(site, trial.config, cost_before, _CONTEXT)
            predicted, stored = cost_before.stored, _stored(fit)
            holds = predicted == stored or (not cost_before.exact and predicted > stored)
            assert holds, f"{site.id}: predicts {predicted} bytes, stores {stored}"

    @pytest.mark.parametrize("value", [0.0, np.nan, np.inf, -1e38])
    def test_no_weight_breaks_it(self, trial: Trial, value: float) -> None:
        """It refuses with a FitError, or what it gives is finite."""
        technique = trial.technique
        for site, weight, statistics, config in trial.arguments():
            if weight is None:
                continue
            unsuited = weight.copy()
            unsuited[0] = value
            try:
                with np.errstate(all="ignore"):
                    fit = technique.fit(site, unsuited, statistics, config)
            except FitError:
                continue
            arrays = list(fit.tensors.values())
            if technique.dequantize is not None:
                arrays.append(technique.dequantize(site, fit))
            for array in arrays:
                assert np.isfinite(array).all(), f"{site.id}: fits {value} with {array.dtype}"

    def test_its_ops_multiply_with_what_it_dequantizes(self, trial: Trial) -> None:
        """y = x Ŵᵀ, and Ŵ is what the gate measures."""
        technique = trial.technique
        if technique.dequantize is None:
            pytest.skip("declares no dequantize")
        random = np.random.default_rng(0)
        for site, fit in trial.fits():
            if site.kind is SiteKind.EMBEDDING:
                continue
            w = technique.dequantize(site, fit)
            assert w.dtype == np.float32, f"{site.id}: Ŵ is {w.dtype}"
            assert w.shape == (site.out_features, site.in_features), f"{site.id}: Ŵ is {w.shape}"
            x = random.standard_normal((3, site.in_features)).astype(np.float32)
            model = gemm(site, np.zeros_like(w))
            technique.rewrite(site, fit, model)
            error = np.abs(run(model, x) - x @ w.T)
            bound = _PRODUCT_ROUNDING * (np.abs(x) @ np.abs(w).T)
            assert (error <= bound).all(), f"{site.id}: differs by up to {error.max()}"

    def test_a_rewrite_keeps_the_interface_and_returns_what_it_changed(self, trial: Trial) -> None:
        """What others read keeps its name, type and shape; the core signs what is returned.

        An owner of the cache alone gives the keys and values of the graph another shape.
        """
        model = trial.found.model.clone()
        owner = any(claim.resource is Resource.CACHE for claim in trial.technique.claims)
        inputs = interface(model.graph.inputs, cache=not owner)
        outputs = interface(model.graph.outputs, cache=not owner)
        for site, fit, others in trial.planned():
            for choice, fitted in others:
                choice.technique.rewrite(site, fitted, model)
            before = {node: interface(node.inputs) for node in model.graph}
            returned = trial.technique.rewrite(site, fit, model)
            after = {node: interface(node.inputs) for node in model.graph}
            assert set(returned) <= set(after), f"{site.id}: returns nodes that are not there"
            for node in set(after) - set(returned):
                assert after[node] == before.get(node), f"{site.id}: changes {node.name}, unsaid"
            names = {node.name for node in after}
            assert site.node in names, f"{site.id}: the node's name {site.node!r} is gone"
        assert interface(model.graph.inputs, cache=not owner)[: len(inputs)] == inputs
        assert interface(model.graph.outputs, cache=not owner)[: len(outputs)] == outputs

    def test_a_built_model_runs_and_reports_the_declared_metrics(self, trial: Trial) -> None:
        """All that is declared, and nothing that only this technique brings and is not."""
        built, base = trial.build(trial.case.config), trial.build(None)
        assert trial.technique.name in built.applied, "is applied nowhere"
        assert np.isfinite(built.logits).all()
        declared = {metric.name for metric in trial.technique.metrics}
        missing, unsaid = declared - built.metrics, built.metrics - base.metrics - declared
        assert not missing, f"declares metrics that no op reports: {sorted(missing)}"
        assert not unsaid, f"its ops report metrics that it does not declare: {sorted(unsaid)}"

    def test_a_run_without_it_has_the_bits_of_a_build_without_it(self, trial: Trial) -> None:
        """Its switch, where it has one: prefill and decode."""
        if not trial.technique.switch:
            pytest.skip("declares no switch: no run can do without it")
        if trial.technique.fallback:
            pytest.skip("its switch needs dense weights, which this build does not keep")
        built, base = trial.build(trial.case.config), trial.build(None)
        assert built.without is not None, "declares a switch, but the graph has none"
        np.testing.assert_array_equal(built.without, base.logits)

    def test_a_full_budget_loses_nothing(self, case: Case, trial: Trial) -> None:
        """The model is that without the technique, prefill and decode."""
        if case.full_budget is None:
            pytest.skip("Case.full_budget is None: no configuration of it loses nothing")
        built, base = trial.build(case.full_budget), trial.build(None)
        assert trial.technique.name in built.applied, "is applied nowhere"
        atol = _ROUNDING * float(np.abs(base.logits).max())
        np.testing.assert_allclose(built.logits, base.logits, rtol=0, atol=atol)


def _make_trial(case: Case, folder: Path) -> Trial:
    plugins = load()
    broken = {plugin.name: plugin.error for plugin in plugins.broken()}
    assert case.technique in plugins.techniques(), (
        f"no installed plugin declares {case.technique!r}; broken are {broken or 'none'}"
    )
    try:
        return Trial.make(case, export_tiny_llama(folder, plugins, case.activation), plugins)
    except ConflictError as error:
        pytest.fail(f"cannot act alone; name what it needs in Case.beside: {error}")


def _owns_weights(technique: Technique) -> bool:
    return any(claim.resource is Resource.WEIGHTS for claim in technique.claims)


def _stored(fit: Fit) -> int:
    return sum(int(tensor.nbytes) for tensor in fit.tensors.values())
