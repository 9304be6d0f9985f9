"""A technique, declared: the one frozen object from which flags, schema, docs and the resolver's
tables are made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any

import tamiz_ops
from tamiz.api.config import NoSettings
from tamiz.api.config import TechniqueConfig as TechniqueConfig
from tamiz.api.cost import Cost
from tamiz.api.site import Site, SiteKind

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from tamiz.api.statistics import Statistics


class Resource(str, Enum):
    """What a claim takes at a site.

    How the weight is stored, which input blocks may be computed, the final choice among these,
    which keys may be attended, which outputs are computed exactly, what is sketched of the keys,
    how keys and values are stored, how the inputs of products are rounded.
    """

    WEIGHTS = "weights"
    CANDIDATES = "candidates"
    BUDGET = "budget"
    KEYS = "keys"
    OUTPUTS = "outputs"
    SKETCH = "sketch"
    CACHE = "cache"
    INPUTS = "inputs"


#: What is stored is stored once, one technique decides last, and keys have one sketch.
_ONE_OWNER = frozenset(Resource) - {Resource.CANDIDATES, Resource.KEYS}


class Mode(str, Enum):
    """How a claim shares its resource: alone, or narrowing what earlier claims left."""

    EXCLUSIVE = "exclusive"
    NARROWING = "narrowing"


class Standing(str, Enum):
    """How far a technique is to be trusted; lists are sorted by it.

    `RECOMMENDED` pays on nearly every model, `SITUATIONAL` in the situation that `Technique.pays`
    names, `EXPERIMENTAL` in no situation that was measured.
    """

    RECOMMENDED = "recommended"
    SITUATIONAL = "situational"
    EXPERIMENTAL = "experimental"


@dataclass(frozen=True)
class Claim:
    """What a technique takes at each of its sites.

    Attributes:
        resource: The resource.
        mode: `EXCLUSIVE` (at most one technique a site) or `NARROWING` (several, in `order`; for
            `candidates` and `keys` only).
        order: Rank among narrowing claims on one resource; lower narrows first, equal ranks go by
            the technique's name.
        block: Block size along the input that the claim works in, or the configuration's field that
            holds it; None: no blocks. All claims on a site share one partition, the finest block:
            others are its multiples. A mask's field of None becomes the block of the weights.

    Raises:
        ValueError: `weights`, `budget`, `outputs`, `sketch` and `cache` have one owner, so they
            are claimed `EXCLUSIVE` only.
    """

    resource: Resource
    mode: Mode = Mode.EXCLUSIVE
    order: int = 0
    block: int | str | None = None

    def __post_init__(self) -> None:
        """Holds the one-owner resources to exclusive claims."""
        if self.resource in _ONE_OWNER and self.mode != Mode.EXCLUSIVE:
            raise ValueError(f"a claim on {self.resource.value} must be exclusive")


@dataclass(frozen=True)
class Fit:
    """The offline transform of one weight.

    Attributes:
        tensors: Packed constants by role (``weight``, ``mask``, …).
        attributes: Attributes of the op that reads them.
        metrics: What the technique measured: ``exact`` (1 if Ŵ = W bit for bit) and more for the
            report. Where it can dequantise, the core adds those of
            `tamiz.building.fit.quality`; else those that it gives under their names are judged.
        bits_per_weight: Stored bits divided by the number of dense weights.
        strip: Set by the core before the rewrite: False where the dense weight is to stay as an
            input of the new node. Only for techniques with a `fallback`.
    """

    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    attributes: Mapping[str, int | float | str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    bits_per_weight: float = 0.0
    strip: bool = True


@dataclass(frozen=True)
class Autotune:
    """Configurations to try at a site, from the smallest to the largest.

    Attributes:
        field: Field that a bare number in a policy's schedule sets; None: schedules leave it alone.
        schedule: ``schedule(site, config)``: fields to change, one mapping an attempt; used where
            the policy gives no schedule.
        fragile: ``fragile(site)``: whether a model loses more by a configuration there than the
            fit says. The whole model's gate backs such sites off first. None: nowhere.
    """

    field: str | None
    schedule: Callable[[Site, Any], Sequence[Mapping[str, Any]]]
    fragile: Callable[[Site], bool] | None = None


@dataclass(frozen=True)
class Strength:
    """One number, equal at all sites of a technique, that a build raises as far as the budget of
    the whole model allows.

    Attributes:
        field: Field of the configuration that holds the number, positive; a larger one saves more
            and loses more.
        fixed: Fields that replace the search where one of them is set.
        start: First number that is tried, where fits predict no loss.
        loss: Metric of a fit that predicts what the model loses by it, in nats a token.
    """

    field: str
    fixed: tuple[str, ...]
    start: float
    loss: str | None = None


class FitError(Exception):
    """A technique cannot represent this weight; one sentence. The site stays dense."""


TakesFunction = Callable[[Site, Any], bool]
FitFunction = Callable[[Site, "np.ndarray", "Statistics | None", Any], Fit]
DequantizeFunction = Callable[[Site, Fit], "np.ndarray"]
RewriteFunction = Callable[[Site, Fit, "ir.Model"], "list[ir.Node]"]


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a technique is called, what can be set, and whether to use it.

    Attributes:
        name: ``block-quant``. Its switch on the command line is ``--<name>=on|off``.
        summary: One sentence for help texts and the docs.
        former: Names that it had, or that its flags began with, in earlier versions. Policies,
            reports and flags with them still load; help does not list them.
        version: Changes when an unchanged configuration gives other tensors.
        config: Pydantic model of the configuration, a `TechniqueConfig`.
        policy_keys: Short keys that a policy's entries may hold for this technique directly, and
            the field of the configuration that each sets: ``{"K": "k"}``.
        default: True if a build uses it unless it is switched off.
        standing: How far to trust it.
        pays: One sentence: where it pays, or that nowhere was found; "" if unknown.
    """

    name: str
    summary: str
    former: tuple[str, ...] = ()
    version: str = "1"
    config: type[TechniqueConfig] = NoSettings
    policy_keys: Mapping[str, str] = field(default_factory=dict)
    default: bool = False
    standing: Standing = Standing.EXPERIMENTAL
    pays: str = ""


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where a technique acts.

    Attributes:
        site_kinds: Kinds of site it can act on.
        tensors: Tensor ids it can act on; empty means all of its kinds.
        takes: ``takes(site, config)``: whether the configuration takes in a site that it can act
            on; a policy that names the site does too. None: all.
        decode_only: True if it acts on single-token steps only.
        step_rows: ``step_rows(config)``: most tokens of a run that it takes for steps; None: 1.
    """

    site_kinds: AbstractSet[SiteKind]
    tensors: AbstractSet[str] = frozenset()
    takes: TakesFunction | None = None
    decode_only: bool = False
    step_rows: Callable[[Any], int] | None = None


@dataclass(frozen=True, kw_only=True)
class Claims:
    """What a technique takes and needs; all that the resolver knows of it.

    Attributes:
        claims: What it takes at each site.
        provides: Capabilities it gives others at the site, ``skippable-blocks``.
        requires: Capabilities that another technique must provide at the site.
        excludes: Capabilities that no other technique may provide at the site, nor where one of
            the two sites is made of the other: what acts on ``attn_q`` meets what acts on the
            attention of its layer.
    """

    claims: tuple[Claim, ...]
    provides: AbstractSet[str] = frozenset()
    requires: AbstractSet[str] = frozenset()
    excludes: AbstractSet[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Offline:
    """What a technique makes of a weight in the build.

    Attributes:
        fit: ``fit(site, weight, statistics, config)``: weight is float32 ``[N, K]``; statistics
            are `tamiz.api.Statistics` of the input of the site, or of the head that shares an
            embedding's weight; None without calibration. Deterministic, one thread, picklable
            (it may run in another process). Raises `FitError`.
        dequantize: ``dequantize(site, fit)``: Ŵ, float32 ``[N, K]``, exactly what the op
            multiplies with, so that the core can measure the fit; None if there is no Ŵ.
        calibrated: True if it fits nothing without statistics: a build without a calibration
            makes one of what the model itself writes.
        autotune: Configurations to try where the policy enables autotune; None for no autotune.
        strength: One number for all its sites that a build searches; None if there is none.
        partition: Field of the configuration that the plan sets to the block of the finest mask
            on the site's input: an owner of weights packs them so that the mask pays.
        options: ``options(site)``: fields of the configuration for each way to store a weight, or
            each strength of acting there, that a build within limits chooses from, by name;
            None if it offers none. `fit` must treat rows alike: losses are predicted from a few.
        masked: Fields of the configuration with which products read only what a mask keeps.
    """

    fit: FitFunction
    dequantize: DequantizeFunction | None = None
    calibrated: bool = False
    autotune: Autotune | None = None
    strength: Strength | None = None
    partition: str | None = None
    options: Callable[[Site], Mapping[str, Mapping[str, Any]]] | None = None
    masked: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """What a technique puts into the graph.

    Attributes:
        rewrite: ``rewrite(site, fit, model)`` replaces the site's node, keeps its name and its
            outputs, and returns the new nodes; the core adds the metadata.
        ops: Ops of the domain `tamiz` whose run-time metrics are the technique's: ``KwtaMask``, or
            ``Attention.pack`` for those of an op whose names start with ``pack.``
        fallback: True if its ops can compute with the dense weight too (`Fit.strip`).
        shown: Fields of the configuration in ``--metrics``: ``{"kwta.temp": "temp"}``.
        switch: Op and input that switch it off in a run, ``KwtaMask.without``; the core connects
            it. "" if a run cannot do without the technique.
    """

    rewrite: RewriteFunction
    ops: tuple[str, ...] = ()
    fallback: bool = False
    switch: str = ""
    shown: Mapping[str, str] = field(default_factory=dict)

    @property
    def metrics(self) -> tuple[tamiz_ops.OpMetric, ...]:
        """Run-time metrics of its ops, as these declare them.

        Raises:
            ValueError: `ops` names an op that does not exist.
        """
        by_name: dict[str, tamiz_ops.OpMetric] = {}
        for entry in self.ops:
            op_type, _, prefix = entry.partition(".")
            for metric in tamiz_ops.op_metrics(op_type):
                if metric.name.startswith(prefix):
                    by_name.setdefault(metric.name, metric)
        return tuple(by_name.values())


@dataclass(frozen=True, kw_only=True)
class Planning:
    """What a technique costs, known before the fit.

    Attributes:
        cost: ``cost(site, config)``; None if the technique stores no weight.
        effect: ``effect(site, config, cost, keys)``: what becomes of the cost that the site has
            under the techniques before this one; None if nothing does. `keys` counts those that a
            decode step attends to so far where the site is an attention, else the whole context.
        loss: ``loss(site, config)``: KL divergence in nats per token; None: a fit predicts it.
    """

    cost: Callable[[Site, Any], Cost] | None = None
    effect: Callable[[Site, Any, Cost, int], Cost] | None = None
    loss: Callable[[Site, Any], float] | None = None


@dataclass(frozen=True, kw_only=True)
class Technique(Planning, Graph, Offline, Claims, Where, Identity):
    """Everything the core knows of a technique; its six groups say what each attribute means."""

    @classmethod
    def of(
        cls,
        identity: Identity,
        where: Where,
        claims: Claims,
        offline: Offline,
        graph: Graph,
        planning: Planning | None = None,
    ) -> Technique:
        """A technique from its groups; no planning where it has no cost and changes none."""
        groups = (identity, where, claims, offline, graph, planning or Planning())
        return cls(**{f.name: getattr(group, f.name) for group in groups for f in fields(group)})

    def __post_init__(self) -> None:
        """Holds the name to what a command-line switch can carry, and names of fields to fields.

        Raises:
            TypeError: The configuration is no `TechniqueConfig`.
            ValueError: A name has another form, a field does not exist or has no default.
        """
        for sets in ("site_kinds", "tensors", "provides", "requires", "excludes"):
            object.__setattr__(self, sets, frozenset(getattr(self, sets)))
        if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", self.name):
            raise ValueError(f"technique name {self.name!r} is not of the form 'block-quant'")
        if not (isinstance(self.config, type) and issubclass(self.config, TechniqueConfig)):
            raise TypeError(f"{self.name}: its configuration is no TechniqueConfig")
        tuned = [self.autotune.field] if self.autotune and self.autotune.field else []
        if self.strength is not None:
            tuned += [self.strength.field, *self.strength.fixed]
        tuned += [self.partition] if self.partition else []
        blocks = [claim.block for claim in self.claims if isinstance(claim.block, str)]
        for name in (*self.policy_keys.values(), *self.shown.values(), *tuned, *blocks):
            if name not in self.config.model_fields:
                raise ValueError(f"{self.name}: its configuration has no field {name!r}")
        for name, info in self.config.model_fields.items():
            if info.is_required():
                raise ValueError(f"{self.name}: field {name!r} of its configuration has no default")

    def flag(self, field: str) -> str:
        """The command-line option of one field of the configuration."""
        extra = self.config.model_fields[field].json_schema_extra
        if isinstance(extra, dict) and "flag" in extra:
            return str(extra["flag"])
        return f"--{self.name}-{field.replace('_', '-')}"

    def flags(self) -> list[str]:
        """The options that help lists: its switch, which a field may share, and those of fields."""
        switch = f"--{self.name}"
        listed = [key for key in self.config.model_fields if not self.is_policy_only(key)]
        return [switch, *(flag for flag in map(self.flag, listed) if flag != switch)]

    def is_policy_only(self, field: str) -> bool:
        """Whether help and flag tables leave a field of the configuration to policies."""
        extra = self.config.model_fields[field].json_schema_extra
        return isinstance(extra, dict) and bool(extra.get("policy_only"))

    def accepted(self) -> dict[str, list[str]]:
        """Every option that the command line takes for each field, the switch under ``""``.

        The first one is the current name; those of earlier versions follow, also for settings that
        were removed.
        """
        flags = {"": [f"--{name}" for name in (self.name, *self.former)]}
        for setting in (*self.config.model_fields, *self.config.removed):
            dashed = setting.replace("_", "-")
            flag = f"--{self.name}-{dashed}"
            if setting in self.config.model_fields:
                flag = self.flag(setting)
            if flag not in flags[""]:
                flags[setting] = [flag, *(f"--{former}-{dashed}" for former in self.former)]
        return flags

    def fits(self, site: Site) -> bool:
        """Whether the technique can act at `site` at all."""
        return site.kind in self.site_kinds and (not self.tensors or site.tensor in self.tensors)
