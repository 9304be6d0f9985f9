"""The page of policies, from their JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Table = Callable[[list[str], list[list[str]]], str]

_HEAD = ["key", "values", "default", "meaning"]
_PARTS = {
    "Entry": "The keys of `defaults`, of a layer, of a tensor and of a site.",
    "Range": "`layers`, and all keys of an entry.",
    "Layer": "`tensors`, and all keys of an entry.",
    "_Gating": "",
    "_Autotune": "",
}
_INTRO = """\
A policy is a JSON file that says which technique may act where, with which settings and within
which quality. `tamiz plan` and `tamiz build` take it as `--policy FILE`. `tamiz schema policy`
prints the JSON Schema that this page is made from. Name the printed file under `"$schema"`, and
editors complete and check the policy.

[Quality](../quality.md#a-policy) says in which order entries are merged.
[Choose a budget](../guides/choose-a-budget.md) has a first policy.

Where *values* ends on *or by tensor*, one value may differ by tensor, as in
`{"gate": 8, "down": 4}`."""


def page(schema: Mapping[str, Any], table: Table) -> str:
    """The keys of a policy and of the objects inside."""
    parts = ["# Policy", _INTRO, "## The file", _rows(schema, table, set())]
    entry = set(schema["$defs"]["Entry"]["properties"])
    for name, text in _PARTS.items():
        found = schema["$defs"][name]
        parts += [f"## {_title(name)}", text or found.get("description", "")]
        parts.append(_rows(found, table, entry if name in ("Range", "Layer") else set()))
    techniques = schema["$defs"]["Techniques"]["properties"]
    parts += [
        "## Techniques",
        "The keys of `techniques`. Each holds `enable` and the settings on the page of "
        "[techniques](techniques.md), without the prefix of the flag: `--kwta-target=mlp` is "
        '`"kwta": {"target": "mlp"}`.',
        table(["key", "meaning"], [[f"`{k}`", v["description"]] for k, v in techniques.items()]),
    ]
    return "\n\n".join(part for part in parts if part)


def _rows(schema: Mapping[str, Any], table: Table, left_out: set[str]) -> str:
    rows = []
    for name, found in schema["properties"].items():
        if name not in left_out:
            default = found.get("default")
            told = "required" if name in schema.get("required", ()) else "–"
            told = told if default is None else f"`{default}`".lower()
            rows.append([f"`{name}`", values(found), told, found["description"]])
    return table(_HEAD, rows)


def values(found: Mapping[str, Any]) -> str:
    """The values that a schema admits, in words."""
    if "$ref" in found:
        title = _title(found["$ref"].rpartition("/")[2])
        return f"[object](#{title.lower()})"
    if "const" in found:
        return f"`{found['const']}`"
    if "enum" in found:
        return ", ".join(f"`{value}`" for value in found["enum"])
    if "anyOf" in found:
        return _either(found["anyOf"])
    kind = found["type"]
    if kind == "array":
        return f"list of {values(found['items'])}"
    if kind == "object":
        inner = [*found.get("patternProperties", {}).values(), found.get("additionalProperties")]
        first = next((one for one in inner if isinstance(one, dict)), None)
        return "object" if first is None else f"object of {values(first)}"
    return {"boolean": "`true`, `false`"}.get(kind, kind) + _bounds(found)


def _either(options: list[Mapping[str, Any]]) -> str:
    told, by_tensor = [], False
    for option in options:
        if "propertyNames" in option:
            by_tensor = True
        elif option.get("type") != "null":
            told.append(values(option))
    return " or ".join(dict.fromkeys(told)) + (", or by tensor" if by_tensor else "")


def _bounds(found: Mapping[str, Any]) -> str:
    low = found.get("minimum", found.get("exclusiveMinimum"))
    high = found.get("maximum", found.get("exclusiveMaximum"))
    parts = []
    if low is not None:
        parts.append(f"{'≥' if 'minimum' in found else '>'} {low}")
    if high is not None:
        parts.append(f"{'≤' if 'maximum' in found else '<'} {high}")
    if "multipleOf" in found:
        parts.append(f"a multiple of {found['multipleOf']}")
    return f" {', '.join(parts)}" if parts else ""


def _title(name: str) -> str:
    return name.removeprefix("_")
