"""The report of a build: typed, written by the build, read by everything that shows or repeats one.

`Report.sites` is the one place for what was decided at a site. `tamiz.reporting.reader` is the one
reader: it refuses unknown and missing fields, other types, and reports of another format.
"""

from __future__ import annotations

from typing import Any, Literal

from tamiz import __version__
from tamiz.api.site import SiteKind
from tamiz.reporting.gate import WholeModelGate
from tamiz.reporting.record import Count, Metrics, Record

#: Version of the report's format. 1 had no version, and two places for a site's decision.
FORMAT: Literal[2] = 2


class TechniqueChoice(Record):
    """Version and configuration of a technique that the build as a whole used."""

    version: str
    config: dict[str, Any]


class Choices(Record):
    """The request of the build.

    Attributes:
        policy_file: Name of the policy's file; None where there was none.
        policy_hash: SHA-256 of techniques and policy, equal for builds that follow the same ones.
        policy_version: Version of the policy's format.
        policy: The policy's contents.
        techniques: The techniques that were chosen for the whole model, by name.
        calibration: Identifies the calibration; None where there was none.
        calibration_tokens: Tokens that the calibration has read.
        domains: The domains of text that the calibration read, as no file was given: shipped ones,
            or ``own`` for text that the model wrote. None where a file was given, or nothing was
            read.
        own_text: What older reports have instead: whether the model wrote the text.
    """

    policy_file: str | None
    policy_hash: str
    policy_version: int | None
    policy: dict[str, Any] | None
    techniques: dict[str, TechniqueChoice]
    calibration: str | None
    calibration_tokens: int | None
    domains: list[str] | None = None
    own_text: bool = False


class Totals(Record):
    """Counts over the sites that have a weight, and bytes of all constants of the model.

    Attributes:
        sites: Sites that have a weight.
        replaced: Sites of which a technique replaced the weight, or acts on it.
        exact: Replaced sites at which no applied technique changes a value.
        bytes_before: Bytes of all constants of the dense model.
        bytes_after: Bytes of all constants of the built model.
    """

    sites: Count
    replaced: Count
    exact: Count
    bytes_before: Count
    bytes_after: Count


class DecisionReport(Record):
    """Whether a fit is used, and why."""

    applied: bool
    reason: str


class FittedTechnique(Record):
    """The fit of one technique at one site: the one that passed, else the closest.

    Attributes:
        name: The technique.
        config: The configuration of the fit.
        config_from: What set each field of `config`: ``autotune``, a place in the policy,
            ``requested``, or ``default``.
        metrics: Quality of the fit; None for what was not finite.
        bits_per_weight: Stored bits for each weight; None where the technique refused to fit.
        decision: Whether the fit is used.
    """

    name: str
    config: dict[str, Any]
    config_from: dict[str, str]
    metrics: Metrics
    bits_per_weight: float | None
    decision: DecisionReport

    @property
    def exact(self) -> bool:
        """Whether the fit changes no value."""
        return self.metrics.get("exact") == 1


class ResolvedPolicy(Record):
    """The policy at one site.

    Attributes:
        enable: False where no requested technique may act.
        strip: Whether the dense weight is removed where a technique could fall back to it.
        policy: The merged entries, as they are written.
        policy_from: Place in the policy that set each dotted key of `policy`.
    """

    enable: bool
    strip: bool
    policy: dict[str, Any]
    policy_from: dict[str, str]


class GatingReport(Record):
    """The gate of one tensor: its limits and its measurements.

    Attributes:
        metric: The requested cosine.
        min_mean: Smallest accepted mean of the cosine.
        min_p05: Smallest accepted 5 % quantile of the cosine.
        max_rel_l2: Largest accepted ‖W − Ŵ‖ / ‖W‖.
        judged: The cosine that was judged; None where the fit has none.
        fallback: Whether `judged` replaces `metric`, which could not be measured.
        mean: Mean of the judged cosine.
        p05: Its 5 % quantile.
        passed: Whether the fit was accepted.
    """

    metric: str
    min_mean: float | None
    min_p05: float | None
    max_rel_l2: float | None
    judged: str | None
    fallback: bool
    mean: float | None
    p05: float | None
    passed: bool


class AttemptReport(Record):
    """One configuration that was fitted.

    Attributes:
        technique: The technique.
        config: The configuration.
        metrics: Quality of the fit; None for what was not finite.
        bits_per_weight: Stored bits for each weight; None where the technique refused to fit.
        bytes: Bytes of the fit's tensors.
        passed: Whether the tensor's gate accepted the fit.
        reason: Why it did not.
        seconds: How long the fit took; None in the bundle's copy of the report.
    """

    technique: str
    config: dict[str, Any]
    metrics: Metrics
    bits_per_weight: float | None
    bytes: Count
    passed: bool
    reason: str | None
    seconds: float | None = None


class Autotune(Record):
    """Every configuration that was fitted at a site, in order; one each without autotune."""

    enabled: bool
    attempts: list[AttemptReport]


class SiteDecision(Record):
    """What was decided at a site.

    Attributes:
        applied: Techniques that act there, in order; none where the site stays dense.
        emit_delta: Whether a technique that is off by default, such as seed-delta, stores the
            weight.
        refused: Techniques that a gate, their own fit or their rewrite refused.
        strip_applied: Whether the dense weight was removed.
        reason: One clause for each fit.
    """

    applied: list[str]
    emit_delta: bool = False
    refused: list[str]
    strip_applied: bool
    reason: str


class SiteReport(Record):
    """Everything about one site.

    Attributes:
        kind: The site's kind.
        node: Name of its node in the recognised graph.
        layer: Its layer; None outside of layers.
        tensor: Its tensor id; None for a site of several tensors.
        shape: Outputs and inputs of its weight.
        bytes_before: Bytes of its dense weight.
        bytes_after: Bytes of what the applied techniques store.
        techniques: What was fitted there, in order.
        resolved: The policy there.
        gating: The tensor's gate, for the first applied technique.
        autotune: What was tried.
        decision: What was decided.
    """

    kind: Literal[tuple(kind.value for kind in SiteKind)]  # type: ignore[valid-type]
    node: str
    layer: Count | None
    tensor: str | None
    shape: tuple[Count, Count]
    bytes_before: Count
    bytes_after: Count
    techniques: list[FittedTechnique]
    resolved: ResolvedPolicy
    gating: GatingReport
    autotune: Autotune
    decision: SiteDecision

    @property
    def applied(self) -> list[FittedTechnique]:
        """The fits that are used, in order."""
        return [fitted for fitted in self.techniques if fitted.decision.applied]

    @property
    def exact(self) -> bool:
        """Whether techniques are applied, and none of them changes a value."""
        return bool(self.applied) and all(fitted.exact for fitted in self.applied)


class ConflictReport(Record):
    """Why techniques cannot act together at a site; see `tamiz.planning.resolver.Conflict`."""

    site: str
    techniques: tuple[str, ...]
    rule: str
    reason: str
    remedies: tuple[str, ...]


class Dropped(Record):
    """A technique that was left out at a site to resolve a conflict."""

    site: str
    technique: str


class NoteReport(Record):
    """Why a pass left a node as it was; see `tamiz.api.passes.Note`."""

    pass_name: str
    node: str
    reason: str


class Report(Record):
    """The report of a build.

    Attributes:
        format: Version of this format.
        tamiz: Version of tamiz that made the build.
        source: What the dense bundle was exported from.
        source_sha256: SHA-256 of that file; None where it is no file.
        fingerprint: Identifies the dense model; see
            `tamiz.calibration.calibration.fingerprint`. Older reports lack this field.
        build: The request of the build.
        totals: Counts and bytes of the whole model.
        gate: The gate of the whole model.
        check: Comparison of built and dense on one input; empty where no valid input is known. See
            `tamiz.survey.self_check`.
        sites: What was decided at every site, by its id, in graph order.
        conflicts: Techniques that could not act together.
        dropped: What was left out to resolve the conflicts.
        notes: What graph passes left as it was.
        seconds: Seconds by step of the build; None in the bundle's copy of the report.
    """

    format: Literal[2] = FORMAT
    tamiz: str = __version__
    source: str
    source_sha256: str | None
    fingerprint: str | None = None
    build: Choices
    totals: Totals
    gate: WholeModelGate
    check: dict[str, float]
    sites: dict[str, SiteReport]
    conflicts: list[ConflictReport]
    dropped: list[Dropped]
    notes: list[NoteReport]
    seconds: dict[str, float] | None = None

    @property
    def of_decoder(self) -> bool:
        """Whether the model is a decoder; else it is an encoder, or something else."""
        return "top1_agreement" in self.check

    @property
    def idle(self) -> list[str]:
        """Techniques that were requested and are applied nowhere."""
        applied = {fitted.name for site in self.sites.values() for fitted in site.applied}
        return [name for name in self.build.techniques if name not in applied]

    @property
    def lossy(self) -> bool:
        """Whether an applied technique changes a value, at any site."""
        return any(site.applied and not site.exact for site in self.sites.values())

    def as_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return self.model_dump(mode="json")

    def without_seconds(self) -> Report:
        """The report without times, which differ between equal builds."""
        sites = {
            name: site.model_copy(update={"autotune": _without_seconds(site.autotune)})
            for name, site in self.sites.items()
        }
        return self.model_copy(update={"sites": sites, "seconds": None})


def _without_seconds(autotune: Autotune) -> Autotune:
    attempts = [a.model_copy(update={"seconds": None}) for a in autotune.attempts]
    return autotune.model_copy(update={"attempts": attempts})
