"""Why the sites of a built bundle are what they are, from the bundle's report alone."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from tamiz.files.errors import TamizError
from tamiz.reporting.gate import TrialReport
from tamiz.reporting.report import ConflictReport, NoteReport, Report, SiteReport

_WHOLE = {"source", "build", "totals", "gate", "check", "conflicts", "dropped", "notes"}


@dataclass(frozen=True)
class Explanation:
    """Everything that led to the decision at one site.

    Attributes:
        site: Id of the site.
        entry: The site's entry of the report.
        backed_off: Trials of the gate of the whole model that did without the site's technique.
        conflicts: Conflicts at the site.
        dropped: Techniques that were left out there to resolve them.
        notes: What graph passes left as it was at the site's node.
    """

    site: str
    entry: SiteReport
    backed_off: list[TrialReport]
    conflicts: list[ConflictReport]
    dropped: list[str]
    notes: list[NoteReport]

    def as_json(self) -> dict[str, Any]:
        """The explanation as a JSON object."""
        return {
            "site": self.site,
            **self.entry.model_dump(mode="json"),
            "backed_off": [trial.model_dump(mode="json") for trial in self.backed_off],
            "conflicts": [conflict.model_dump(mode="json") for conflict in self.conflicts],
            "dropped": self.dropped,
            "notes": [note.model_dump(mode="json") for note in self.notes],
        }


def explain(report: Report, site: str) -> Explanation:
    """Explains one site.

    Raises:
        TamizError: The model has no such site.
    """
    if site not in report.sites:
        like = get_close_matches(site, report.sites, 1)
        hint = f"did you mean {like[0]!r}?" if like else "'tamiz explain BUNDLE' lists them"
        raise TamizError(f"{site}: no site of the model, {hint}")
    entry = report.sites[site]
    return Explanation(
        site,
        entry,
        [trial for trial in report.gate.trials if site in trial.refused],
        [conflict for conflict in report.conflicts if conflict.site == site],
        [dropped.technique for dropped in report.dropped if dropped.site == site],
        [note for note in report.notes if note.node == entry.node],
    )


def overview(report: Report) -> dict[str, Any]:
    """A JSON object: a line for every site, and what was decided about the whole model."""
    sites = [
        {
            "site": name,
            "kind": entry.kind,
            "layer": entry.layer,
            "techniques": entry.decision.applied,
            "bytes": entry.bytes_after,
            "judged": entry.gating.judged,
            "mean": entry.gating.mean,
            "reason": entry.decision.reason,
        }
        for name, entry in report.sites.items()
    ]
    return {**report.model_dump(mode="json", include=_WHOLE), "sites": sites}
