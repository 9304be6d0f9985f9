"""The schema of a policy: what is checked before it is followed, and published as JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from tamiz.api.site import TENSOR_IDS
from tamiz.api.technique import Technique
from tamiz.files.located_json import LocatedJson

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

#: A key of ``sites`` that begins so is a regular expression.
PATTERN = "re:"
#: Tensor ids as a policy may shorten them.
SHORT = {tensor: tensor.removeprefix("ffn_").removeprefix("attn_") for tensor in TENSOR_IDS}
SHORT["tok_embd"] = "embd"

_NAMES = tuple(dict.fromkeys((*SHORT.values(), *TENSOR_IDS)))
_IN_LAYERS = tuple(t for t in TENSOR_IDS if t.startswith(("ffn_", "attn_")))
_LAYER, _LAYERS = r"^(0|[1-9]\d{0,17})$", r"^\d{1,18}(-\d{1,18})?$"
_PATTERNS = {_LAYER: "the number of a layer", _LAYERS: "layers such as 15-20 or 7"}


def check(value: Any, located: LocatedJson, techniques: Mapping[str, Technique]) -> None:
    """Holds a policy to its schema and to what its keys mean."""
    if not isinstance(value, dict):
        raise located.error((), f"expected an object, found {type(value).__name__}")
    try:
        policy_model(techniques).model_validate(value)
    except ValidationError as error:
        first = max(error.errors(), key=lambda e: len(_place(e["loc"], value)))
        raise located.error(_place(first["loc"], value), _message(first)) from error
    for index, part in enumerate(value.get("ranges", [])):
        if not layers_of(part["layers"]):
            message = f"expected a range from low to high, found {part['layers']!r}"
            raise located.error(("ranges", index, "layers"), message)
    for name in value.get("sites", {}):
        if name.startswith(PATTERN):
            try:
                re.compile(name.removeprefix(PATTERN))
            except re.error as error:
                raise located.error(("sites", name), f"no regular expression: {error}") from error
    for place, entry in _all_entries(value):
        if entry.get("enable") is False and entry.get("strip") is True:
            message = "strips the dense weight where 'enable': false leaves nothing in its place"
            raise located.error((*place, "strip"), message)


def _message(error: ErrorDetails) -> str:
    """What pydantic found, in the words of the other errors."""
    if error["type"] == "missing":
        return f"lacks the key {error['loc'][-1]!r}"
    if error["type"] == "extra_forbidden":
        return "unknown key"
    message = error["msg"].replace("Input should be", "expected")
    if error["type"] == "string_pattern_mismatch":
        pattern = error["ctx"]["pattern"]
        message = f"expected {_PATTERNS.get(pattern, f'text that matches {pattern}')}"
    if not isinstance(error["input"], dict):
        message += f", found {error['input']!r:.60}"
    return message


def policy_model(techniques: Mapping[str, Technique]) -> type[BaseModel]:
    """The pydantic model of a policy, with the keys of these techniques."""
    entry = _entry_model(techniques)
    ranged = create_model(
        "Range", __base__=entry, layers=(str, Field(pattern=_LAYERS, description="15-20"))
    )
    tensors: Any = dict[Literal[_IN_LAYERS], entry]  # type: ignore[valid-type]
    layer = create_model("Layer", __base__=entry, tensors=(tensors, None))
    number = Annotated[str, Field(pattern=_LAYER)]
    return create_model(
        "Policy",
        __base__=_Strict,
        version=(Literal[1], ...),
        defaults=(entry, None),
        ranges=(list[ranged], None),  # type: ignore[valid-type]
        layers=(dict[number, layer], None),  # type: ignore[valid-type]
        sites=(dict[str, entry], None),  # type: ignore[valid-type]
    )


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


_Cosine = Annotated[float, Field(ge=-1, le=1)]
_Tensor = Literal[_NAMES]  # type: ignore[valid-type]
_ByTensor = dict[_Tensor, _Cosine]
_Steps = Annotated[list[int | float | dict[str, Any]], Field(min_length=1, max_length=64)]


class _Gating(_Strict):
    """What a fit must reach; what is not named here is not asked."""

    metric: Literal["cos_xw", "cos_x", "cos_w"] = "cos_xw"
    min_mean: _Cosine | _ByTensor | None = None
    min_p05: _Cosine | _ByTensor | None = None
    max_rel_l2: Annotated[float, Field(ge=0)] | None = None


class _Autotune(_Strict):
    """Tries configurations in order and takes the first that passes."""

    enabled: bool = False
    schedule: _Steps | dict[_Tensor, _Steps] | None = None
    schedule_gate_up: _Steps | None = None
    schedule_down: _Steps | None = None
    max_iters: Annotated[int, Field(ge=1)] | None = None


def _entry_model(techniques: Mapping[str, Technique]) -> type[BaseModel]:
    """An entry with the sections and short keys of these techniques."""
    sections: dict[str, Any] = {}
    short: dict[str, list[Any]] = {}
    for name, technique in techniques.items():
        fields: dict[str, Any] = {}
        for key, info in technique.config.model_fields.items():
            kind = _annotated(info)
            fields[key] = (_or_by_tensor(kind), None)
        for key, target in technique.policy_keys.items():
            kind = _annotated(technique.config.model_fields[target])
            short.setdefault(key, []).append(_or_by_tensor(kind))
        fields["enable"] = (bool, None)
        sections[name] = (create_model(name, __base__=_Strict, **fields), None)
    made: Any = create_model("Techniques", __base__=_Strict, **sections)
    extra: dict[str, Any] = {
        k: (Union[tuple(v)], None)  # noqa: UP007
        for k, v in short.items()
    }
    return create_model(
        "Entry",
        __base__=_Strict,
        enable=(bool, None),
        strip=(bool, None),
        gating=(_Gating, None),
        autotune=(_Autotune, None),
        techniques=(made, None),
        **extra,
    )


def _annotated(info: Any) -> Any:
    kind = info.annotation
    for constraint in info.metadata:
        kind = Annotated[kind, constraint]
    return Annotated[kind, Field(description=info.description)] if info.description else kind


def _or_by_tensor(kind: Any) -> Any:
    return Union[kind, dict[_Tensor, kind]]  # noqa: UP007


def _place(loc: Sequence[str | int], value: Any) -> tuple[str | int, ...]:
    """The part of pydantic's location that exists in the value; the rest names union members."""
    place: list[str | int] = []
    for part in loc:
        inside = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(inside, dict) and part in inside:
            value = inside[part]
            place.append(part)
    return tuple(place)


def _all_entries(value: Mapping[str, Any]) -> list[tuple[tuple[str | int, ...], Any]]:
    found: list[tuple[tuple[str | int, ...], Any]] = [(("defaults",), value.get("defaults", {}))]
    found += [(("ranges", i), part) for i, part in enumerate(value.get("ranges", []))]
    for name, layer in value.get("layers", {}).items():
        found.append((("layers", name), layer))
        tensors = layer.get("tensors", {})
        found += [(("layers", name, "tensors", t), entry) for t, entry in tensors.items()]
    found += [(("sites", name), entry) for name, entry in value.get("sites", {}).items()]
    return found


def layers_of(text: str) -> range:
    """The layers of ``15-20`` or ``7``; none where the range runs backwards."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
