"""Takes the decisions of a build from the report of an earlier one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tamiz.api.site import Site
from tamiz.api.technique import Technique
from tamiz.building.decide.decider import CandidateTools, Tools
from tamiz.building.decision import Decision
from tamiz.calibration.calibration import Calibration, fingerprint
from tamiz.calibration.domains import OWN
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.planning.choice import Choice, by_any_name
from tamiz.planning.goal import Goal
from tamiz.planning.plan import Plan
from tamiz.planning.policy import Gating, Rules
from tamiz.planning.resolver import resolve
from tamiz.reporting.gate import WholeModelGate
from tamiz.reporting.report import Report

#: The decisions were gated when they were made.
_ANYTHING = Gating("cos_w", None, None, None)


@dataclass(frozen=True)
class Replay:
    """A decider that follows a report; see `tamiz.building.decide.decider.Decider`.

    Attributes:
        file: The report's file.
        report: The report.
        techniques: The declared techniques by name.
    """

    file: Path
    report: Report
    techniques: Mapping[str, Technique]

    def start(self, tools: Tools) -> ReplayCourse:
        """The plan that applies what the report says was applied, and nothing else.

        Raises:
            TamizError: The report is of another model or used another calibration or imatrix, or a
                technique is not installed in the version that the report names, or refuses its
                configuration.
        """
        plan = self._plan(tools)  # a misfit is reported before the minutes that a text takes
        calibration = tools.calibration(needed=bool(self.domains))
        self._check_calibration(calibration, tools.calibration_file is not None)
        return ReplayCourse(self.report, plan, calibration)

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains that the reported build read, as no calibration was given."""
        build = self.report.build
        return (OWN,) if build.own_text else tuple(build.domains or ())

    def _plan(self, tools: Tools) -> Plan:
        """The plan, whatever the calibration."""
        report, sites = self.report, tools.survey.sites
        self._check_model(tools.survey.bundle)
        if unknown := sorted(set(report.sites) - {site.id for site in sites}):
            raise TamizError(f"{self.file}: sites.{unknown[0]} is no site of the model")
        base = tuple(
            self._choice(f"build.techniques.{name}", name, entry.config)
            for name, entry in sorted(report.build.techniques.items())
        )
        resolution = resolve(sites, {site.id: self._choices(site) for site in sites})
        if resolution.conflicts:
            raise TamizError(f"{self.file}: {resolution.conflicts[0].reason}")
        rules = {site.id: self._rules(site) for site in sites}
        return Plan(resolution.plans, (), (), report.build.policy_hash, base, rules)

    def _check_model(self, dense: Bundle) -> None:
        """Refuses another model; an old report knows only the hash of its source."""
        report = self.report
        if report.fingerprint is None:
            fits = report.source_sha256 == dense.manifest.source.sha256
        else:
            fits = report.fingerprint == fingerprint(dense)
        if not fits:
            raise TamizError(
                f"{self.file}: reports a build of another model, or of another export of it, than "
                f"{dense.path}"
            )

    def _check_calibration(self, calibration: Calibration | None, given: bool) -> None:
        """Refuses other statistics than those of the reported build; `given`: those of a file."""
        build = self.report.build
        if build.calibration == (calibration.digest if calibration else None):
            return
        used = "another calibration file or imatrix"
        if self.domains and given:
            used = "the text of the default; remove --calibration"
        elif self.domains:
            used = "another imatrix, --text or shipped text"
        raise TamizError(f"{self.file}: the build it reports used {used}")

    def _choices(self, site: Site) -> list[Choice]:
        """What was applied at a site."""
        entry = self.report.sites.get(site.id)
        return [
            self._choice(f"sites.{site.id}.techniques.{fitted.name}", fitted.name, fitted.config)
            for fitted in (entry.applied if entry else ())
        ]

    def _rules(self, site: Site) -> Rules:
        """Rules under which every configuration of the report passes."""
        if (entry := self.report.sites.get(site.id)) is None:
            return Rules(gating=_ANYTHING, gated=True)
        origins = {
            fitted.name: dict.fromkeys(fitted.config, self.file.name) for fitted in entry.applied
        }
        return Rules(
            strip=entry.resolved.strip, gating=_ANYTHING, gated=True, field_origins=origins
        )

    def _choice(self, field: str, name: str, config: Mapping[str, object]) -> Choice:
        reported = self.report.build.techniques.get(name)
        if reported is None:
            raise TamizError(f"{self.file}: {field}: build.techniques lacks {name!r}")
        technique = by_any_name(self.techniques).get(name)
        if technique is None or technique.version != reported.version:
            state = "is not installed" if technique is None else f"is version {technique.version}"
            raise TamizError(
                f"{self.file}: was built with {name} version {reported.version}, which {state} here"
            )
        try:
            return replace(Choice.of(technique, config), named=True)
        except TamizError as error:
            raise TamizError(f"{self.file}: {field}.config: {error}") from error


@dataclass(frozen=True)
class ReplayCourse:
    """The plan of a report.

    Attributes:
        report: The report.
        plan: The plan.
        calibration: What fits read.
    """

    report: Report
    plan: Plan
    calibration: Calibration | None

    def gate(
        self, decisions: list[Decision], candidates: CandidateTools
    ) -> tuple[list[Decision], WholeModelGate]:
        """Keeps all decisions: the reported build has passed the gate."""
        return decisions, WholeModelGate.not_run(Goal(), "the decisions are those of a report")

    def refused(self, decisions: Sequence[Decision]) -> dict[str, list[str]]:
        """Techniques that the reported build refused."""
        sites = self.report.sites.items()
        return {name: site.decision.refused for name, site in sites if site.decision.refused}
