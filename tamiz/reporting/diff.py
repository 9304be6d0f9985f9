"""What differs between two bundles: files, ops of the graph, and the decision at each site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.reporting.reader import bundle_report
from tamiz.reporting.report import SiteReport
from tamiz_ops.program import read_program


def differences(a: Bundle, b: Bundle) -> dict[str, Any]:
    """Compares two bundles; weights are compared by the hashes of their files.

    Returns:
        ``files``, ``ops``, ``techniques`` (of the whole build), ``gate`` and ``sites``: what
        differs by name, each as ``{"a": …, "b": …}`` with None for what one of them lacks;
        ``nodes``, ``bytes`` and the loss that the gate's result is ``shown_by``, of both; and
        whether they are ``equal``. A stage of a `Fused` node counts as an op.

    Raises:
        TamizError: A bundle's model or report cannot be read.
    """
    reports = [_decisions(bundle) for bundle in (a, b)]
    counts = [_ops(bundle) for bundle in (a, b)]
    files = [
        {
            name: {"bytes": file.size, "sha256": file.sha256}
            for name, file in x.manifest.files.items()
        }
        for x in (a, b)
    ]
    differing: dict[str, Any] = {
        "files": _differing(*files),
        "ops": _differing(*(ops for _, ops in counts)),
        "techniques": _differing(a.manifest.techniques, b.manifest.techniques),
        "gate": _differing(*(gate for gate, _, _ in reports)),
        "sites": _differing(*(sites for _, _, sites in reports)),
    }
    equal = not any(differing.values())
    nodes = {side: count for side, (count, _) in zip("ab", counts, strict=True)}
    both = {
        "nodes": nodes,
        "bytes": {"a": a.size, "b": b.size},
        "shown_by": {side: name for side, (_, name, _) in zip("ab", reports, strict=True)},
    }
    return {**differing, **both, "equal": equal}


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    names = dict.fromkeys([*a, *b])
    return {
        name: {"a": a.get(name), "b": b.get(name)} for name in names if a.get(name) != b.get(name)
    }


def _decisions(bundle: Bundle) -> tuple[dict[str, Any], str | None, dict[str, Any]]:
    """The outcome of the gate of the whole model, the name of the loss that shows it, and every
    site's decision; empty if dense."""
    if bundle.manifest.kind == "dense":
        return {}, None, {}
    report = bundle_report(bundle)
    result = report.gate.result
    gate = {
        "max_dppl": report.gate.max_dppl,
        "max_kl": report.gate.max_kl,
        "min_cosine": report.gate.min_cosine,
        "skipped": report.gate.skipped,
        "result": None if result is None else result.model_dump(mode="json"),
    }
    sites = {name: _decision(site) for name, site in report.sites.items()}
    return gate, report.gate.measure.name, sites


def _decision(site: SiteReport) -> dict[str, Any]:
    return {
        "layer": site.layer,
        "techniques": {fitted.name: fitted.config for fitted in site.applied},
        "refused": site.decision.refused,
        "bytes": site.bytes_after,
        "reason": site.decision.reason,
    }


def _ops(bundle: Bundle) -> tuple[int, Counter[str]]:
    """Nodes of the graph, and how often each op is computed."""
    import onnx

    try:
        graph = onnx.load(bundle.model, load_external_data=False).graph
    except Exception as error:  # protobuf raises its own
        raise TamizError(f"{bundle.model}: cannot be read as an ONNX model: {error}") from error
    ops: Counter[str] = Counter()
    for node in graph.node:
        domain = f"{node.domain}." if node.domain else ""
        programs = [a.s.decode() for a in node.attribute if a.name == "program" and domain]
        try:
            stages = [stage.op for program in programs for stage in read_program(program)]
        except ValueError as error:
            raise TamizError(f"{bundle.model}: {node.name}: {error}") from error
        ops.update(f"{domain}{op}" for op in stages or [node.op_type])
    return len(graph.node), ops
