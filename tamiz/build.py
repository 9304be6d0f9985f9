"""Builds a bundle: recognise → plan → fit → gate → rewrite → fuse → save → check against dense."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tamiz import bundle as bundles
from tamiz.bundle import Bundle
from tamiz.errors import TamizError
from tamiz.external_data import locations
from tamiz.gate import refusal
from tamiz.inspect import Survey, run_passes, survey
from tamiz.plan import Plan, describe, make_plan
from tamiz.report import Attempt, Outcome, make_report
from tamiz.resolver import Choice, SitePlan
from tamiz.site import SiteKind
from tamiz.technique import Fit, FitError

if TYPE_CHECKING:
    import onnx_ir as ir

    from tamiz.graph import Note
    from tamiz.plugins import Plugins

#: Larger constants go to the data file, each at a multiple of the page size.
_INLINE_BYTES = 256
_PAGE = 4096

#: Called with what is being done, steps done and steps in all.
Progress = Callable[[str, int, int], None]


def build(
    source: str | Path,
    target: str | Path,
    choices: Iterable[Choice],
    plugins: Plugins,
    *,
    on_conflict: str = "error",
    progress: Progress = lambda what, done, total: None,
) -> dict[str, Any]:
    """Builds a dense bundle into one that is smaller and runs faster.

    Args:
        source: Folder of a dense bundle.
        target: Folder of the new bundle; it appears when everything went well.
        choices: Techniques to use wherever they can act; see `tamiz.plan.choose`.
        plugins: The loaded plugins.
        on_conflict: ``error`` or ``drop``; see `tamiz.plan.make_plan`.
        progress: Told about every step.

    Returns:
        The report, with ``seconds`` by step. The bundle's copy lacks them, so that equal builds
        have equal bytes.

    Raises:
        TamizError: `source` is no dense bundle, its model cannot be read, the techniques are in
            conflict, or `target` must not be written.
        RuntimeError: The built model does not run, or gives other than finite numbers.
    """
    from tamiz.selfcheck import compare

    source, target, choices = Path(source), Path(target), list(choices)
    dense = Bundle.open_dense(source)
    if target.resolve() == source.resolve():
        raise TamizError(f"{target}: is the dense bundle itself, expected another folder")
    clock = _Clock()
    with bundles.writing(target) as folder:
        result = _rewrite(dense, folder, choices, plugins, on_conflict, progress, clock)
        progress("check", result.steps - 1, result.steps)
        with clock("check"):
            check = compare(dense.model, folder / bundles.MODEL, result.vocabulary)
        report = make_report(
            dense.manifest.source.name,
            choices,
            result.plan,
            result.outcomes,
            result.notes,
            result.total_bytes,
            check,
        )
        bundles.write_json(folder / bundles.REPORT, report)
        bundles.write_manifest(
            folder,
            "built",
            dense.manifest.source,
            describe(choices),
            result.plan.policy,
            result.kv_cache,
        )
    progress("done", result.steps, result.steps)
    return {**report, "seconds": clock.seconds}


@dataclass
class _Clock:
    """Seconds spent, by what was done."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[what] = round(time.perf_counter() - start, 3)


@dataclass(frozen=True)
class _Rewritten:
    """What `_rewrite` leaves besides the files; it does not hold on to the graph."""

    plan: Plan
    outcomes: list[Outcome]
    notes: list[Note]
    total_bytes: tuple[int, int]
    kv_cache: str
    vocabulary: int
    steps: int


def _rewrite(
    dense: Bundle,
    folder: Path,
    choices: list[Choice],
    plugins: Plugins,
    on_conflict: str,
    progress: Progress,
    clock: _Clock,
) -> _Rewritten:
    """Everything from the dense graph to the saved one."""
    from tamiz.graph import Phase

    progress("recognise", 0, 1)
    with clock("recognise"):
        found = survey(dense, plugins)
    plan = make_plan(found.sites, choices, on_conflict)
    steps = len(plan.sites) + 2
    before = _constant_bytes(found.model)
    outcomes = []
    with clock("fit"):
        for index, site_plan in enumerate(plan.sites):
            progress(f"fit {site_plan.site.id}", index, steps)
            if site_plan.site.weight is not None or site_plan.choices:
                outcomes.append(_apply(found, site_plan, plan.policy))
    progress("save", steps - 2, steps)
    with clock("save"):
        notes = run_passes(found.model, plugins, Phase.FUSE)
        with _reading(dense):
            _save(found.model, folder)
        for name in sorted(set(dense.manifest.files) - {bundles.MODEL, *locations(dense.model)}):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(dense.file(name), folder / name)
    rows = [site.out_features for site in found.sites if site.kind == SiteKind.EMBEDDING]
    return _Rewritten(
        plan=plan,
        outcomes=outcomes,
        notes=[*found.notes, *notes],
        total_bytes=(before, _constant_bytes(found.model)),
        kv_cache="shared" if _shares_kv_cache(found.model) else "exact",
        vocabulary=min(rows, default=2),
        steps=steps,
    )


def _apply(found: Survey, site_plan: SitePlan, policy: str) -> Outcome:
    """Fits what is planned for one site, in order, as far as the gate lets it."""
    site, before = site_plan.site, found.weight_bytes(site_plan.site)
    weight = _weight(found, site_plan)
    after, attempts = before, []
    for choice in site_plan.choices:
        try:
            fit = choice.technique.fit(site, weight, None, choice.config)
            reason = refusal(fit.metrics)
            made = [] if reason else choice.technique.rewrite(site, fit, found.model)
        except FitError as error:
            attempts.append(Attempt(choice, False, f"stays dense: {error}", {}, None))
            break
        if reason is not None:
            attempts.append(_attempt(choice, fit, False, f"stays dense: {reason}"))
            break  # what follows may need what this one would have provided
        for node in made:
            _sign(node, site_plan, choice, policy)
        attempts.append(_attempt(choice, fit, True, "passed the gate"))
        if choice.technique.cost is not None:
            after = sum(tensor.nbytes for tensor in fit.tensors.values())
    return Outcome(site, tuple(attempts), before, after)


def _attempt(choice: Choice, fit: Fit, applied: bool, reason: str) -> Attempt:
    return Attempt(choice, applied, reason, dict(fit.metrics), fit.bits_per_weight)


def _weight(found: Survey, site_plan: SitePlan) -> Any:
    """The dense weight float32 ``[N, K]``; None where nothing needs it."""
    from tamiz.graph import find_linear, weight_array

    if site_plan.site.weight is None or not site_plan.choices:
        return None
    with _reading(found.bundle):
        return weight_array(find_linear(found.model, site_plan.site), site_plan.site)


@contextmanager
def _reading(dense: Bundle) -> Iterator[None]:
    """Names the bundle where onnx-ir refuses its external data."""
    try:
        yield
    except ValueError as error:
        raise TamizError(f"{dense.model}: {error}") from error


def _sign(node: ir.Node, site_plan: SitePlan, choice: Choice, policy: str) -> None:
    """Writes on a rewritten node what made it; several techniques may have."""
    from tamiz import graph

    signature = {
        graph.TECHNIQUE: choice.technique.name,
        graph.VERSION: choice.technique.version,
        graph.POLICY: policy,
        graph.SITE: site_plan.site.id,
    }
    if site_plan.site.layer is not None:
        signature[graph.LAYER] = str(site_plan.site.layer)
    earlier = node.metadata_props
    if earlier.get(graph.POLICY) == policy:
        for key in (graph.TECHNIQUE, graph.VERSION):
            signature[key] = f"{earlier[key]},{signature[key]}"
    node.metadata_props.update(signature)


def _constant_bytes(model: ir.Model) -> int:
    tensors = (value.const_value for value in model.graph.initializers.values())
    return sum(int(tensor.nbytes) for tensor in tensors if tensor is not None)


def _shares_kv_cache(model: ir.Model) -> bool:
    """Whether only tamiz's ops, which append in place, read the past keys and values."""
    pasts = [i for i in model.graph.inputs if (i.name or "").startswith("past_key_values.")]
    readers = [node for past in pasts for node in past.consumers()]
    return bool(pasts) and all(node.domain == "tamiz" for node in readers)


def _save(model: ir.Model, folder: Path) -> None:
    import onnx_ir as ir
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    RemoveUnusedNodesPass()(model)
    ir.save(
        model,
        folder / bundles.MODEL,
        external_data=bundles.DATA,
        size_threshold_bytes=_INLINE_BYTES,
        alignment=_PAGE,
        align_threshold=_INLINE_BYTES,
    )
