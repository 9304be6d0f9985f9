"""Follows the decisions of an earlier build's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tamiz.api.site import Site
from tamiz.api.technique import Technique
from tamiz.calibration.file import Calibration
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.files.text_file import read_json
from tamiz.planning.plan import Plan, configure
from tamiz.planning.policy import Gating, Rules
from tamiz.planning.resolver import Choice, resolve

_ANYTHING = Gating("cos_w", None, None, None)


def plan_from_report(
    path: Path,
    dense: Bundle,
    sites: Sequence[Site],
    techniques: Mapping[str, Technique],
    known: Calibration | None,
) -> Plan:
    """The plan that applies what the report says was applied, and nothing else.

    Raises:
        TamizError: No report of a build of this model with this calibration, or a technique is
            not installed in that version.
    """
    report = read_json(path)
    try:
        build, entries = report["build"], report["sites"]
        if report["source_sha256"] != dense.manifest.source.sha256:
            raise TamizError(f"{path}: reports a build of another model than {dense.path}")
        if build["calibration"] != (known.digest if known else None):
            raise TamizError(f"{path}: the build it reports used another calibration file")
        if unknown := sorted(set(entries) - {site.id for site in sites}):
            raise TamizError(f"{path}: sites.{unknown[0]} is no site of the model")
        base = [
            _choice(path, techniques, name, entry["version"], entry["config"])
            for name, entry in sorted(build["techniques"].items())
        ]
        versions = {c.technique.name: c.technique.version for c in base}
        wanted: dict[str, list[Choice]] = {}
        rules: dict[str, Rules] = {}
        for site in sites:
            entry = entries.get(site.id, {"techniques": []})
            wanted[site.id] = [
                _choice(path, techniques, t["name"], versions[t["name"]], t["config"])
                for t in entry["techniques"]
                if t["decision"]["applied"]
            ]
            strip = _tensor(report, site).get("resolved", {}).get("strip", True)
            origins = {
                c.technique.name: dict.fromkeys(c.technique.config.model_fields, path.name)
                for c in wanted[site.id]
            }
            rules[site.id] = Rules(strip=strip, gating=_ANYTHING, field_origins=origins)
        policy: str = build["policy_hash"]
    except (KeyError, TypeError, AttributeError) as error:
        raise TamizError(f"{path}: not a complete report of a build: {error!r}") from error
    resolution = resolve(sites, wanted)
    if resolution.conflicts:
        raise TamizError(f"{path}: {resolution.conflicts[0].reason}")
    return Plan(resolution.plans, (), (), policy, tuple(base), rules)


def unsafe_in_report(path: Path) -> dict[str, str]:
    """Techniques that the reported build refused, by site id."""
    found = {}
    for site, entry in read_json(path)["sites"].items():
        names = [(t["name"], t["decision"]["applied"]) for t in entry["techniques"]]
        refused = dict.fromkeys(name for name, _ in names if (name, True) not in names)
        if refused:
            found[site] = ",".join(refused)
    return found


def _choice(
    path: Path, techniques: Mapping[str, Technique], name: str, version: str, config: Any
) -> Choice:
    technique = techniques.get(name)
    if technique is None or technique.version != version:
        found = "is not installed" if technique is None else f"is version {technique.version}"
        raise TamizError(f"{path}: was built with {name} version {version}, which {found} here")
    return configure(technique, config, asked=True)


def _tensor(report: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    layer = report["layers"].get(str(site.layer), {"tensors": {}})
    found: Mapping[str, Any] = layer["tensors"].get(site.tensor) or report["sites"].get(site.id, {})
    return found
