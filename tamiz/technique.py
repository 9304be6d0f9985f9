"""A technique, declared: the one frozen object from which flags, schema, docs and the resolver's
tables are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from tamiz.site import Site, SiteKind

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir


class Resource(str, Enum):
    """What a claim takes at a site."""

    WEIGHTS = "weights"
    CANDIDATES = "candidates"
    BUDGET = "budget"
    KEYS = "keys"


class Mode(str, Enum):
    """How a claim shares its resource: alone, or narrowing what earlier claims left."""

    EXCLUSIVE = "exclusive"
    NARROWING = "narrowing"


@dataclass(frozen=True)
class Claim:
    """What a technique takes at each of its sites.

    Attributes:
        resource: The resource.
        mode: `EXCLUSIVE` (at most one technique a site) or `NARROWING` (several, in `order`).
        order: Rank among narrowing claims on one resource; lower narrows first.
        block: Block size along the input that the claim works in; None where it has none. All
            claims on a site share the finest common partition.
    """

    resource: Resource
    mode: Mode
    order: int = 0
    block: int | None = None


class TechniqueConfig(BaseModel):
    """Base of every technique's configuration. Unknown keys are errors.

    Each field carries a description with its unit, its range as pydantic constraints, and
    optionally ``json_schema_extra={"flag": "--its-flag"}`` where the flag's name is not
    ``--<technique>-<field>``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Metric:
    """A run-time metric that the technique's ops report.

    Attributes:
        name: As the report and `tamiz_ops.metrics` name it, ``kwta.keep_ratio``.
        unit: ``bytes``, ``fraction``, ``ms``, …
        description: One sentence.
    """

    name: str
    unit: str
    description: str


@dataclass(frozen=True)
class Fit:
    """The offline transform of one weight.

    Attributes:
        tensors: Packed constants by role (``weight``, ``mask``, …).
        attributes: Attributes of the op that reads them.
        metrics: Quality of the fit: ``rel_l2``, ``cos_mean_w``, … (definitions in the docs).
        bits_per_weight: Stored bits divided by the number of dense weights.
    """

    tensors: Mapping[str, np.ndarray]
    attributes: Mapping[str, int | float | str]
    metrics: Mapping[str, float]
    bits_per_weight: float


FitFunction = Callable[[Site, "np.ndarray", "Mapping[str, np.ndarray] | None", Any], Fit]
RewriteFunction = Callable[[Site, Fit, "ir.Model"], "list[ir.Node]"]


@dataclass(frozen=True)
class Technique:
    """Everything the core knows of a technique.

    Attributes:
        name: ``block-quant``. Its switch on the command line is ``--<name>=on|off``.
        version: Changes when the same configuration gives other tensors.
        summary: One line for ``tamiz plugins`` and the docs.
        config: Pydantic model of the configuration, a `TechniqueConfig`.
        site_kinds: Kinds of site it can act on.
        tensors: Tensor ids it can act on; empty means all of its kinds.
        claims: What it takes at each site.
        provides: Capabilities it gives others at the site, ``skippable-blocks``.
        requires: Capabilities that another technique must provide at the site.
        default: True if a build uses it when the user asks for nothing.
        decode_only: True if it acts on single-token steps only.
        metrics: Run-time metrics of its ops.
        fit: ``fit(site, weight, statistics, config)``: weight is float32 ``[N, K]``; statistics
            are the site's calibration tensors or None. Deterministic.
        rewrite: ``rewrite(site, fit, model)`` replaces the site's node, keeps its outputs, and
            returns the new nodes; the core adds the metadata.
    """

    name: str
    version: str
    summary: str
    config: type[TechniqueConfig]
    site_kinds: frozenset[SiteKind]
    claims: tuple[Claim, ...]
    fit: FitFunction
    rewrite: RewriteFunction
    tensors: frozenset[str] = field(default=frozenset())
    provides: frozenset[str] = field(default=frozenset())
    requires: frozenset[str] = field(default=frozenset())
    default: bool = False
    decode_only: bool = False
    metrics: tuple[Metric, ...] = field(default=())

    def fits(self, site: Site) -> bool:
        """Whether the technique can act at `site` at all."""
        return site.kind in self.site_kinds and (not self.tensors or site.tensor in self.tensors)
