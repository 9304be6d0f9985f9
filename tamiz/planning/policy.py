"""The policy: what a build may do at which layer and tensor, as a JSON file.

Merge, key by key and inside of objects, later wins:
``defaults`` → every range of ``ranges`` that holds the layer, in order → ``layers[L]`` →
``layers[L].tensors[T]`` → every entry of ``sites`` that names the site, in order.

An entry holds ``enable``, ``strip``, ``gating``, ``autotune``, ``techniques`` and the short keys
that the installed techniques declare. Numbers may differ by tensor: ``{"gate": 256, "down": 512}``.

A policy protects what it does not name. Where such an object leaves a tensor out, techniques that
are off by default leave that tensor alone: all of them for an object in ``gating``, the key's own
technique for a short key. A technique acts again where an entry of one tensor or of ``sites`` holds
it under ``techniques``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

from tamiz.api.site import Site, SiteKind
from tamiz.api.technique import Technique
from tamiz.files.errors import TamizError, did_you_mean
from tamiz.files.located_json import LocatedJson
from tamiz.planning.former import updated
from tamiz.planning.policy_schema import KEY_OF_SCHEMA, PATTERN, SHORT, check, layers_of, matches


@dataclass(frozen=True)
class Gating:
    """Quality that a fit must reach; None for no limit. The defaults apply without a policy.

    Attributes:
        metric: ``cos_xw``, ``cos_x`` or ``cos_w``; see `tamiz.building.fit.quality`.
        min_mean: Smallest mean of that cosine.
        min_p05: Smallest 5 % quantile of that cosine.
        max_rel_l2: Largest ‖W − Ŵ‖ / ‖W‖; int4 costs normally distributed weights 0.08. A policy
            with a ``gating`` that does not name it has no such limit.
    """

    metric: str = "cos_xw"
    min_mean: float | None = 0.98
    min_p05: float | None = 0.95
    max_rel_l2: float | None = 0.2


#: Gate of the head and the embedding for techniques that are off by default, where no policy has a
#: ``gating``: an error there is in every token's logits.
STRICT = Gating("cos_xw", 0.999, 0.998, None)


@dataclass(frozen=True)
class Tuning:
    """Whether several configurations are tried at a site, and which.

    Attributes:
        enabled: Whether several configurations are tried.
        schedule: Fields of the configuration, or bare numbers for the technique's main one; None
            for the technique's own schedule.
        max_iters: Largest number of attempts; None for no limit.
    """

    enabled: bool = False
    schedule: tuple[Any, ...] | None = None
    max_iters: int | None = None


@dataclass(frozen=True)
class Rules:
    """The policy resolved for one site.

    Attributes:
        enable: False where no requested technique may act.
        strip: Whether the dense weight is dropped where a technique could fall back to it.
        gating: Quality that a fit must reach.
        gated: Whether `gating` was chosen; False where it is the default.
        tuning: Configurations that are tried.
        fields: Fields of the configuration by technique.
        switched: Techniques that this policy switches on or off by name.
        named: Techniques for which the policy names this site.
        protected: Techniques that leave this site alone, because the policy names others.
        resolved: The merged entry as it is written, for the report.
        origins: Which entry of the policy set a key of `resolved`, by dotted key:
            ``{"gating.min_mean": "ranges[0]"}``.
        field_origins: The same for `fields`, by technique and field.
    """

    enable: bool = True
    strip: bool = True
    gating: Gating = field(default_factory=Gating)
    gated: bool = False
    tuning: Tuning = field(default_factory=Tuning)
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    switched: Mapping[str, bool] = field(default_factory=dict)
    named: AbstractSet[str] = frozenset()
    protected: AbstractSet[str] = frozenset()
    resolved: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    field_origins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def gate(self, technique: Technique, kind: SiteKind) -> Gating:
        """The gate of a technique's fits at a site of this kind."""
        ends = kind in (SiteKind.HEAD, SiteKind.EMBEDDING)
        return STRICT if ends and not (self.gated or technique.default) else self.gating


@dataclass(frozen=True)
class Policy:
    """A checked policy.

    Attributes:
        file: Its file's name.
        value: Its contents.
        techniques: The declarations that it was checked against.
    """

    file: str
    value: Mapping[str, Any]
    techniques: Mapping[str, Technique]

    def rules(self, site: Site, base: Rules) -> Rules:
        """The rules at one site; `base` has the values that the policy does not set."""
        parts = self._entries(site)
        entry: dict[str, Any] = reduce(_merge, (part for _, part in parts), {})
        origins = _origins(parts)
        named = entry.get("techniques", {})
        fields = {
            name: _fields(technique, entry, named.get(name, {}), site)
            for name, technique in self.techniques.items()
        }
        gating = _gating(entry["gating"], site) if "gating" in entry else base.gating
        left_out = gating is None
        own = {
            name
            for place, part in parts
            if _is_of_one(place)
            for name in part.get("techniques", {})
        }
        return Rules(
            enable=entry.get("enable", base.enable),
            strip=entry.get("strip", base.strip),
            gating=replace(base.gating, max_rel_l2=None) if gating is None else gating,
            gated=base.gated or ("gating" in entry and not left_out),
            tuning=_tuning(entry.get("autotune", {}), site, base.tuning),
            fields=fields,
            switched={name: given.get("enable", True) for name, given in named.items()},
            named=own
            | {
                n for n, t in self.techniques.items() if _is_named(t, entry, named.get(n, {}), site)
            },
            protected={
                n
                for n, t in self.techniques.items()
                if not t.default and n not in own and (left_out or _is_left_out(t, entry, site))
            },
            resolved=entry,
            origins=origins,
            field_origins={
                name: {field: _origin(origins, technique, field, site) for field in fields[name]}
                for name, technique in self.techniques.items()
            },
        )

    def check_reach(self, on: Collection[str], rules: Mapping[str, Rules]) -> None:
        """Refuses short keys that belong to no technique of the build.

        Raises:
            TamizError: Names the key and a technique that would take it.
        """
        written = {key for at_site in rules.values() for key in at_site.resolved}
        taken = {key for name in on for key in self.techniques[name].policy_keys}
        for name, technique in self.techniques.items():
            if stray := sorted((set(technique.policy_keys) & written) - taken):
                raise TamizError(
                    f"{self.file}: the key {stray[0]!r} belongs to {name}, which is off; "
                    f"switch it on with --{name}=on or under 'techniques'"
                )

    def _entries(self, site: Site) -> list[tuple[str, Mapping[str, Any]]]:
        """Entries that apply to a site, in order, each with its place in the policy."""
        entries = [("defaults", self.value.get("defaults", {}))]
        if site.layer is not None:
            for index, part in enumerate(self.value.get("ranges", [])):
                if site.layer in layers_of(part["layers"]):
                    entry = {k: v for k, v in part.items() if k != "layers"}
                    entries.append((f"ranges[{index}]", entry))
            layer = self.value.get("layers", {}).get(str(site.layer), {})
            place = f"layers[{site.layer}]"
            entries.append((place, {k: v for k, v in layer.items() if k != "tensors"}))
            tensor = layer.get("tensors", {}).get(site.tensor, {})
            entries.append((f"{place}.tensors[{site.tensor}]", tensor))
        sites = self.value.get("sites", {}).items()
        return entries + [(f"sites[{name}]", entry) for name, entry in sites if _names(name, site)]


def read_policy(path: Path, techniques: Mapping[str, Technique], sites: Sequence[Site]) -> Policy:
    """Reads a policy and holds it to its schema, the installed techniques and the model.

    Args:
        path: The JSON file.
        techniques: The declared techniques by name.
        sites: The sites of the model.

    Raises:
        TamizError: With file, line and JSON path: no valid JSON, an unknown or duplicate key, a
            value out of its range, a layer or site that the model does not have, a field that the
            technique refuses, or ``strip`` where nothing can be stripped.
    """
    located = LocatedJson(path)
    located.value = updated(located.value, techniques)
    check(located.value, located, techniques)
    layers = {site.layer for site in sites if site.layer is not None}
    for index, part in enumerate(located.value.get("ranges", [])):
        held = layers_of(part["layers"])
        for layer in (held[-1], held[0]):
            _check_layer(located, ("ranges", index, "layers"), layer, layers)
    for layer in located.value.get("layers", {}):
        _check_layer(located, ("layers", layer), int(layer), layers)
    for name in located.value.get("sites", {}):
        if not any(_names(name, site) for site in sites):
            close = did_you_mean(name, [site.id for site in sites])
            message = "matches no site of the model" + (close or "; 'tamiz inspect' lists them")
            raise located.error(("sites", name), message)
    value = {key: part for key, part in located.value.items() if key != KEY_OF_SCHEMA}
    return Policy(path.name, value, techniques)


def _check_layer(
    located: LocatedJson, place: tuple[str | int, ...], layer: int, layers: set[int]
) -> None:
    if layer not in layers:
        existing = f"layers 0 to {max(layers)}" if layers else "no layers"
        raise located.error(place, f"layer {layer} does not exist, the model has {existing}")


def _names(name: str, site: Site) -> bool:
    """Whether a key of ``sites`` names the site."""
    if name.startswith(PATTERN):
        return matches(name.removeprefix(PATTERN), site.id)
    return name == site.id


def _merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """New over old; objects are merged, everything else is replaced."""
    merged = dict(old)
    for key, value in new.items():
        before = merged.get(key)
        merged[key] = value
        if isinstance(value, dict) and isinstance(before, dict):
            merged[key] = _merge(before, value)
    return merged


def _origins(parts: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, str]:
    """Place of the entry that set it, by dotted key; keys that `_merge` replaces are removed."""
    origins: dict[str, str] = {}
    for place, entry in parts:
        for key in _keys(entry):
            above = {key[:index] for index, letter in enumerate(key) if letter == "."}
            origins = {
                old: origin
                for old, origin in origins.items()
                if old not in above and not old.startswith(f"{key}.")
            }
            origins[key] = place
    return origins


def _keys(entry: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys of an entry's values; an empty object is one."""
    keys = []
    for key, value in entry.items():
        inner = _keys(value, f"{prefix}{key}.") if isinstance(value, dict) else []
        keys += inner or [f"{prefix}{key}"]
    return keys


def _origin(origins: Mapping[str, str], technique: Technique, field: str, site: Site) -> str:
    """Place of the entry that set a field of a technique at a site."""
    short = next((key for key, name in technique.policy_keys.items() if name == field), field)
    keys = [
        f"{key}{tensor}"
        for key in (f"techniques.{technique.name}.{field}", short)
        for tensor in ("", f".{site.tensor}", f".{SHORT[site.tensor]}" if site.tensor else "")
    ]
    return next(origins[key] for key in keys if key in origins)


def _pick(value: Any, site: Site) -> Any:
    """The value at a site's tensor, where values differ by tensor; None where there is none."""
    if not isinstance(value, dict):
        return value
    if site.tensor is None:
        return None
    return value.get(site.tensor, value.get(SHORT[site.tensor]))


def _fields(
    technique: Technique, entry: Mapping[str, Any], section: Mapping[str, Any], site: Site
) -> dict[str, Any]:
    short = {field: entry[key] for key, field in technique.policy_keys.items() if key in entry}
    named = {key: value for key, value in section.items() if key != "enable"}
    picked = {key: _pick(value, site) for key, value in {**short, **named}.items()}
    return {key: value for key, value in picked.items() if value is not None}


def _is_of_one(place: str) -> bool:
    """Whether an entry is one of a tensor or of ``sites``."""
    return place.startswith("sites[") or ".tensors[" in place


def _is_named(
    technique: Technique, entry: Mapping[str, Any], section: Mapping[str, Any], site: Site
) -> bool:
    """Whether a value of the technique that differs by tensor has one for the site's tensor."""
    short = [entry[key] for key in technique.policy_keys if key in entry]
    by_tensor = [value for value in (*short, *section.values()) if isinstance(value, dict)]
    return any(_pick(value, site) is not None for value in by_tensor)


def _is_left_out(technique: Technique, entry: Mapping[str, Any], site: Site) -> bool:
    """Whether a short key of the technique has values for other tensors only."""
    return any(key in entry and _pick(entry[key], site) is None for key in technique.policy_keys)


def _gating(given: Mapping[str, Any], site: Site) -> Gating | None:
    """The gate that is named at a site; None where limits are named for other tensors only."""
    nothing: dict[str, Any] = dict.fromkeys(asdict(Gating()))
    values = {key: _pick(value, site) for key, value in given.items()}
    limits = [value for key, value in values.items() if key != "metric"]
    by_tensor = any(isinstance(value, dict) for value in given.values())
    if by_tensor and site.weight is not None and not any(limit is not None for limit in limits):
        return None
    return Gating(**{**nothing, "metric": "cos_xw", **values})


def _tuning(given: Mapping[str, Any], site: Site, base: Tuning) -> Tuning:
    schedule = _pick(given.get("schedule"), site)
    if site.tensor in ("ffn_gate", "ffn_up"):
        schedule = given.get("schedule_gate_up", schedule)
    elif site.tensor == "ffn_down":
        schedule = given.get("schedule_down", schedule)
    return Tuning(
        given.get("enabled", base.enabled),
        None if schedule is None else tuple(schedule),
        given.get("max_iters"),
    )
