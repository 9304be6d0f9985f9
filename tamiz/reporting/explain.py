"""Why the sites of a built bundle are what they are, read from its report alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from tamiz.files.bundle import REPORT, Bundle
from tamiz.files.errors import TamizError

_WHOLE = ("source", "build", "totals", "gate", "check", "conflicts", "dropped", "notes")


@contextmanager
def reading(bundle: Bundle) -> Iterator[dict[str, Any]]:
    """The report of a built bundle.

    Raises:
        TamizError: A dense bundle, about which nothing was decided, or an incomplete report.
    """
    if bundle.manifest.kind != "built":
        raise TamizError(f"{bundle.path}: is a dense bundle, expected a built one")
    try:
        yield bundle.json(REPORT)
    except (KeyError, TypeError, AttributeError) as error:
        raise TamizError(
            f"{bundle.path / REPORT}: not a complete report of this version: {error!r}"
        ) from error


def explain(report: Mapping[str, Any], site: str) -> dict[str, Any]:
    """Everything that led to what stands at one site.

    Args:
        report: See `reading`.
        site: Id of the site.

    Returns:
        The site's entry of the report (``kind``, ``shape``, ``bytes_before``, ``bytes_after``,
        ``techniques`` with configuration, where each field comes from, and decision); what the
        policy says there (``resolved``); ``gating``, ``autotune``, ``decision``; and of what is
        told of the whole model the part about this site: ``backed_off`` (trials of the
        whole-model gate that refused it), ``conflicts``, ``dropped`` and ``notes``.

    Raises:
        TamizError: The model has no such site.
    """
    sites = report["sites"]
    if site not in sites:
        like = get_close_matches(site, sites, 1)
        hint = f"did you mean {like[0]!r}?" if like else "'tamiz explain BUNDLE' lists them"
        raise TamizError(f"{site}: no site of the model, {hint}")
    entry = tensor = sites[site]
    if "resolved" not in entry:
        tensor = report["layers"][str(entry["layer"])]["tensors"][entry["tensor"]]
    return {
        "site": site,
        **entry,
        **{key: tensor[key] for key in ("resolved", "gating", "autotune", "decision")},
        "backed_off": [t for t in report["gate"]["trials"] if site in t["refused"]],
        "conflicts": [c for c in report["conflicts"] if c["site"] == site],
        "dropped": [d["technique"] for d in report["dropped"] if d["site"] == site],
        "notes": [note for note in report["notes"] if note["node"] == entry["node"]],
    }


def overview(report: Mapping[str, Any]) -> dict[str, Any]:
    """What stands at every site and why, and what was decided about the whole model."""
    sites = []
    for name in report["sites"]:
        found = explain(report, name)
        sites.append(
            {
                "site": name,
                "kind": found["kind"],
                "layer": found["layer"],
                "techniques": found["decision"]["emit"],
                "bytes": found["bytes_after"],
                "judged": found["gating"]["judged"],
                "mean": found["gating"]["mean"],
                "reason": found["decision"]["reason"],
            }
        )
    return {**{key: report[key] for key in _WHOLE}, "sites": sites}
