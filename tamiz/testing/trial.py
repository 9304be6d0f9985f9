"""A technique on the tiny llama: its plan, its fits, its builds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tamiz.api.site import Site
from tamiz.api.technique import Fit, FitError, Technique, TechniqueConfig
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.calibration.calibrate import calibrate_bundle
from tamiz.calibration.calibration import Calibration
from tamiz.files.bundle import Bundle
from tamiz.planning.choice import Choice
from tamiz.planning.plan import Plan, choose, make_plan
from tamiz.survey.survey import Survey, survey

if TYPE_CHECKING:
    import onnx_ir as ir

    from tamiz.plugins import Plugins
    from tamiz.runtime import sequence as runtime

#: Read at once, and then token by token.
_PROMPT = [(7 * i * i + 3 * i) % 250 for i in range(48)]
_DECODED = [(11 * i + 5) % 250 for i in range(12)]
#: Random weights are no trained ones: nothing is refused for its error.
_POLICY = {"version": 1, "defaults": {"gating": {"min_mean": -1}}}
_WINDOWS, _SAMPLES = 2, 256


@dataclass(frozen=True)
class Case:
    """What the kit is to know of a technique.

    Attributes:
        technique: Its name.
        config: Fields of the configuration to test with.
        full_budget: Fields with which the model is that without the technique, but for rounding;
            None if there are none. The kit's weights come from Q4_1 and Q8_0.
        beside: Other techniques that have to be on, and their fields.
        activation: Of the model's feed-forward blocks; None for SiLU.
        readme: Its README; None for the one next to the module of its configuration.
    """

    technique: str
    config: Mapping[str, Any] = field(default_factory=dict)
    full_budget: Mapping[str, Any] | None = None
    beside: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    activation: str | None = None
    readme: Path | None = None


@dataclass(frozen=True)
class Built:
    """A model that was built and run.

    Attributes:
        logits: After the prompt and after each decoded token, ``[steps, V]``.
        metrics: Names of what its ops report.
        applied: Techniques that are applied at some site.
        refused: Reasons of the sites at which a technique was fitted and left out, by technique.
        without: `logits` of runs without the technique; None where no run can do without it.
    """

    logits: NDArray[np.float32]
    metrics: set[str]
    applied: set[str]
    refused: Mapping[str, list[str]]
    without: NDArray[np.float32] | None


@dataclass(frozen=True)
class Trial:
    """A technique on a dense bundle.

    Attributes:
        case: What is tried.
        dense: The bundle.
        plugins: The loaded plugins.
        found: Its graph.
        calibration: Inputs of its sites, on random tokens.
        plan: What a build would do.
    """

    case: Case
    dense: Path
    plugins: Plugins
    found: Survey
    calibration: Calibration
    plan: Plan
    _built: dict[str, Built] = field(default_factory=dict)

    @classmethod
    def make(cls, case: Case, dense: Path, plugins: Plugins) -> Trial:
        """Plans and calibrates.

        Raises:
            ConflictError: The technique cannot act together with the others.
        """
        surveyed = survey(Bundle.open(dense), plugins)
        requested = {**case.beside, case.technique: case.config}
        plan = make_plan(surveyed.sites, choose(plugins.techniques(), requested))
        calibration = calibrate_bundle(
            dense,
            dense.parent / "calibration",
            plugins,
            texts=[_text(dense.parent / "text")],
            windows=_WINDOWS,
            samples=_SAMPLES,
        )
        return cls(case, dense, plugins, surveyed, calibration, plan)

    @property
    def technique(self) -> Technique:
        """The declaration."""
        return self.plugins.techniques()[self.case.technique]

    @property
    def config(self) -> TechniqueConfig:
        """The configuration."""
        return self.technique.config.model_validate(dict(self.case.config))

    def arguments(self) -> list[tuple[Site, NDArray[np.float32] | None, Any, TechniqueConfig]]:
        """Arguments of its fit, at one site of every kind and tensor that it accepts."""
        sites: dict[Any, Site] = {}
        for site_plan in self.plan.sites:
            if any(c.technique.name == self.technique.name for c in site_plan.choices):
                site = site_plan.site
                if self._fit(Choice(self.technique, self.config), site) is not None:
                    sites.setdefault((site.kind, site.tensor), site)
        assert sites, "accepts no site of the tiny llama"
        return [(s, *self._known(s), self.config) for s in sites.values()]

    def fits(self) -> list[tuple[Site, Fit]]:
        """Its fits with `arguments`, made again; on one thread, as in a build."""
        with threadpool_limits(1):
            return [(each[0], self.technique.fit(*each)) for each in self.arguments()]  # type: ignore[arg-type]

    def planned(self) -> Iterator[tuple[Site, Fit, list[tuple[Choice, Fit]]]]:
        """Its sites, its fit there, and the fits of the techniques that rewrite before it."""
        for site_plan in self.plan.sites:
            names = [choice.technique.name for choice in site_plan.choices]
            if self.technique.name not in names:
                continue
            until = names.index(self.technique.name)
            fitted = [(c, self._fit(c, site_plan.site)) for c in site_plan.choices[: until + 1]]
            fits = [(choice, fit) for choice, fit in fitted if fit is not None]
            if len(fits) == len(fitted):
                yield site_plan.site, fits[-1][1], fits[:-1]

    def build(self, fields: Mapping[str, Any] | None) -> Built:
        """Builds and runs the model with these fields, or, for None, without the technique."""
        key = json.dumps(fields, sort_keys=True)
        if key not in self._built:
            self._built[key] = self._build(fields)
        return self._built[key]

    def _build(self, fields: Mapping[str, Any] | None) -> Built:
        from tamiz.runtime.model import Model
        from tamiz_ops import metrics

        techniques = self.plugins.techniques()
        on = {c.technique.name for plan in self.plan.sites for c in plan.choices}
        requested: dict[str, Any] = dict.fromkeys(set(techniques) - on)
        requested |= {**self.case.beside, self.technique.name: fields}
        policy = self.dense.parent / "policy.json"
        policy.write_text(json.dumps(_POLICY), "utf-8")
        calibration = self.dense.parent / "calibration"
        options = Options(policy=policy, calibration=calibration, max_dppl=None)
        target = self.dense.parent / f"built-{len(self._built)}"
        report = build(self.dense, target, choose(techniques, requested), self.plugins, options)
        refused: dict[str, list[str]] = {}
        for fitted in (each for site in report.sites.values() for each in site.techniques):
            if not fitted.decision.applied:
                refused.setdefault(fitted.name, []).append(fitted.decision.reason)
        model = Model.load(target, threads=1)
        logits, without = _read(model.sequence(len(_PROMPT) + len(_DECODED))), None
        if self.technique.name in model.switches:
            sequence = model.sequence(len(_PROMPT) + len(_DECODED))
            sequence.switch_off({self.technique.name})
            without = _read(sequence)
        return Built(
            logits,
            {name for node in metrics(model.session).values() for name in node},
            {fitted.name for site in report.sites.values() for fitted in site.applied},
            refused,
            without,
        )

    def _fit(self, choice: Choice, site: Site) -> Fit | None:
        try:
            return choice.technique.fit(site, *self._known(site), choice.config)  # type: ignore[arg-type]
        except FitError:
            return None

    def _known(self, site: Site) -> tuple[NDArray[np.float32] | None, Any]:
        """Weight ``[N, K]`` and statistics of a site, as a build gives them to a fit."""
        from tamiz.api.editing import GraphEditor
        from tamiz.api.linear import weight_array

        weight = None
        if site.weight is not None:
            weight = np.array(weight_array(GraphEditor(self.found.model).linear(site), site))
        return weight, self.calibration.statistics(site.id)


def _read(sequence: runtime.Sequence) -> NDArray[np.float32]:
    """Logits after the prompt and after each decoded token, ``[steps, V]``."""
    logits = [sequence.read(_PROMPT).copy()]
    logits += [sequence.step(token).copy() for token in _DECODED]
    return np.stack(logits)


def _text(path: Path) -> Path:
    words = np.random.default_rng(0).integers(0, 999, 400)
    path.write_text(" ".join(f"hello {word}" for word in words), "utf-8")
    return path


def same(one: Fit, other: Fit) -> bool:
    """Whether two fits are the same bit for bit."""
    return (
        dict(one.attributes) == dict(other.attributes)
        and dict(one.metrics) == dict(other.metrics)
        and one.bits_per_weight == other.bits_per_weight
        and set(one.tensors) == set(other.tensors)
        and all(
            (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
            for a, b in ((one.tensors[name], other.tensors[name]) for name in one.tensors)
        )
    )


def interface(
    values: Sequence[ir.Value | None], cache: bool = True
) -> list[tuple[Any, ...] | None]:
    """Name, type and shape of values; without the shapes of keys and values if not `cache`."""

    def shape(value: ir.Value) -> ir.Shape | None:
        shaped = cache or not (value.name or "").startswith(("past_key_values.", "present."))
        return value.shape if shaped else None

    return [None if v is None else (v.name, v.dtype, shape(v)) for v in values]


def gemm(site: Site, weight: NDArray[np.float32]) -> ir.Model:
    """A model of one node, the product at `site`, with the weight ``[N, K]``."""
    import onnx_ir as ir

    stored = np.ascontiguousarray(weight if site.transposed else weight.T)
    float32 = ir.TensorType(ir.DataType.FLOAT)
    x = ir.Value(name="x", type=float32, shape=ir.Shape(["tokens", site.in_features]))
    y = ir.Value(name="y", type=float32, shape=ir.Shape(["tokens", site.out_features]))
    w = ir.Value(
        name=site.weight,
        type=float32,
        shape=ir.Shape(stored.shape),
        const_value=ir.tensor(stored, name=site.weight),
    )
    attributes = {"transB": int(site.transposed)}
    node = ir.node("Gemm", [x, w], attributes, name=site.node, outputs=[y])
    graph = ir.Graph([x], [y], nodes=[node], initializers=[w], opset_imports={"": 21})
    return ir.Model(graph, ir_version=10)


def run(model: ir.Model, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Runs a model of one input and one output in onnxruntime."""
    import onnx_ir as ir
    import onnxruntime as ort

    import tamiz_ops

    options = ort.SessionOptions()
    tamiz_ops.register(options)
    serialised = ir.serde.serialize_model(model).SerializeToString()
    session = ort.InferenceSession(serialised, options, providers=["CPUExecutionProvider"])
    y: NDArray[np.float32] = session.run(None, {"x": x})[0]
    return y
