"""The schema of a policy: what is checked before it is followed, and published as JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import SchemaError

from tamiz.api.site import TENSOR_IDS
from tamiz.api.technique import Technique, TechniqueConfig
from tamiz.files.errors import did_you_mean
from tamiz.files.located_json import LocatedJson
from tamiz.files.validation import describe, place_of

#: Key of a policy that names its JSON Schema.
KEY_OF_SCHEMA = "$schema"
#: Prefix of a key of ``sites`` that is a regular expression.
PATTERN = "re:"
#: Short forms of tensor ids that a policy may use.
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
        first = max(error.errors(), key=lambda e: len(place_of(e["loc"], value)))
        place, message = place_of(first["loc"], value), describe(first, _PATTERNS)
        if first["type"] == "extra_forbidden":
            message += did_you_mean(str(place[-1]), _known_keys(place[:-1], techniques))
        raise located.error(place, message) from error
    for index, part in enumerate(value.get("ranges", [])):
        if not layers_of(part["layers"]):
            message = f"expected a range from low to high, found {part['layers']!r}"
            raise located.error(("ranges", index, "layers"), message)
    for name in value.get("sites", {}):
        if name.startswith(PATTERN):
            try:
                matches(name.removeprefix(PATTERN), "")
            except ValueError as error:
                raise located.error(("sites", name), f"no regular expression: {error}") from error
    for place, entry in _all_entries(value):
        if entry.get("enable") is False and entry.get("strip") is True:
            message = "strips the dense weight where 'enable': false leaves nothing in its place"
            raise located.error((*place, "strip"), message)


def matches(pattern: str, site: str) -> bool:
    """Whether a regular expression matches a whole site id, in time linear in its length.

    Raises:
        ValueError: No regular expression of the crate regex (as Python's, but without look-around
            and backreferences), or a huge one.
    """
    return _whole(pattern)(site)


@lru_cache(maxsize=256)
def _whole(pattern: str) -> Callable[[str], bool]:
    try:
        # The pattern alone first: ``a)(b`` becomes one in the group.
        for text in (pattern, rf"\A(?:{pattern})\z"):
            adapter = TypeAdapter(Annotated[str, StringConstraints(pattern=text)])
    except SchemaError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise ValueError(reason.removeprefix("SchemaError: ").removeprefix("error: ")) from error

    def matched(site: str) -> bool:
        try:
            adapter.validate_python(site)
        except ValidationError:
            return False
        return True

    return matched


def _known_keys(place: Sequence[str | int], techniques: Mapping[str, Technique]) -> list[str]:
    """The keys that an object of a policy may hold."""
    inside = place[-1] if place else None
    if inside is None:
        return [KEY_OF_SCHEMA, *policy_model(techniques).model_fields]
    if inside == "gating":
        return list(_Gating.model_fields)
    if inside == "autotune":
        return list(_Autotune.model_fields)
    if inside == "techniques":
        return list(techniques)
    if len(place) > 1 and place[-2] == "techniques" and inside in techniques:
        return ["enable", *techniques[str(inside)].config.model_fields]
    (entry,) = get_args(policy_model(techniques).model_fields["ranges"].annotation)
    return ["tensors", *entry.model_fields]


def policy_model(techniques: Mapping[str, Technique]) -> type[BaseModel]:
    """The pydantic model of a policy, with the keys of these techniques."""
    return _policy_model(
        tuple(
            _Section(name, one.summary, one.config, tuple(one.policy_keys.items()))
            for name, one in techniques.items()
        )
    )


class _Section(NamedTuple):
    """What a technique adds to the model of a policy."""

    name: str
    summary: str
    config: type[TechniqueConfig]
    short: tuple[tuple[str, str], ...]


@lru_cache(maxsize=4)  # it takes 0.1 s to make
def _policy_model(techniques: Sequence[_Section]) -> type[BaseModel]:
    entry = _entry_model(techniques)
    ranged = create_model(
        "Range",
        __base__=entry,
        layers=(
            str,
            Field(pattern=_LAYERS, description="First and last layer, both included: 15-20, or 7."),
        ),
    )
    ids: Any = dict[Literal[_IN_LAYERS], entry]  # type: ignore[valid-type]
    tensors = Field(None, description="Entries by tensor id; each overrides its layer's entry.")
    layer = create_model("Layer", __base__=entry, tensors=(ids, tensors))
    number = Annotated[str, Field(pattern=_LAYER)]
    return create_model(
        "Policy",
        __base__=_Strict,
        schema_=(
            str,
            Field(
                None,
                alias=KEY_OF_SCHEMA,
                description="Path or address of this schema, for editors. A build ignores it.",
            ),
        ),
        version=(Literal[1], Field(description="Version of the policy format.")),
        defaults=(entry, Field(None, description="Rules of every site.")),
        ranges=(
            list[ranged],  # type: ignore[valid-type]
            Field(None, description="Rules of ranges of layers; later ranges override earlier."),
        ),
        layers=(
            dict[number, layer],  # type: ignore[valid-type]
            Field(None, description="Rules by layer number, from 0; override `ranges`."),
        ),
        sites=(
            dict[str, entry],  # type: ignore[valid-type]
            Field(
                None,
                description="Rules by site id as 'tamiz inspect' prints it, or by 're:' and a "
                "regular expression, without look-around and backreferences, that matches the "
                "whole id. Override everything else.",
            ),
        ),
    )


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


_Cosine = Annotated[float, Field(ge=-1, le=1)]
_Tensor = Literal[_NAMES]  # type: ignore[valid-type]
_ByTensor = dict[_Tensor, _Cosine]
_Steps = Annotated[list[int | float | dict[str, Any]], Field(min_length=1, max_length=64)]


class _Gating(_Strict):
    """Quality that a fit must reach. Limits that are not named are not checked."""

    metric: Literal["cos_xw", "cos_x", "cos_w"] = Field(
        "cos_xw",
        description="Cosine between W and Ŵ that is checked. cos_xw: input channels weighted by "
        "the energy of sampled inputs; cos_x: outputs for sampled inputs; cos_w: rows of the "
        "weights, which needs no calibration.",
    )
    min_mean: _Cosine | _ByTensor | None = Field(
        None, description="Smallest accepted mean of the cosine, from -1 to 1."
    )
    min_p05: _Cosine | _ByTensor | None = Field(
        None, description="Smallest accepted 5 % quantile of the cosine, from -1 to 1."
    )
    max_rel_l2: Annotated[float, Field(ge=0)] | None = Field(
        None,
        description="Largest accepted relative error of the weights, ‖W − Ŵ‖ / ‖W‖. int4 reaches "
        "about 0.08.",
    )


class _Autotune(_Strict):
    """Tries configurations in order and takes the first that passes the gate."""

    enabled: bool = Field(False, description="Try several configurations at a site.")
    schedule: _Steps | dict[_Tensor, _Steps] | None = Field(
        None,
        description="Configurations in the order of the attempts: objects of settings, or numbers "
        "for the technique's main setting. The technique's own schedule is the default.",
    )
    schedule_gate_up: _Steps | None = Field(
        None, description="Schedule of ffn_gate and ffn_up; overrides `schedule`."
    )
    schedule_down: _Steps | None = Field(
        None, description="Schedule of ffn_down; overrides `schedule`."
    )
    max_iters: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Largest number of attempts per site; no limit by default."
    )


def _entry_model(techniques: Sequence[_Section]) -> type[BaseModel]:
    """An entry with the sections and short keys of these techniques."""
    sections: dict[str, Any] = {}
    short: dict[str, list[tuple[str, FieldInfo]]] = {}
    for technique in techniques:
        name = technique.name
        fields: dict[str, Any] = {
            key: (_or_by_tensor(_annotated(info)), Field(None, description=info.description))
            for key, info in technique.config.model_fields.items()
        }
        for key, target in technique.short:
            info = technique.config.model_fields[target]
            short.setdefault(key, []).append((f"{target} of {name}", info))
        text = f"Switch {name} on or off at these sites. A named technique is on by default."
        fields["enable"] = (bool, Field(None, description=text))
        section = create_model(name, __base__=_Strict, **fields)
        sections[name] = (section, Field(None, description=technique.summary))
    techniques_model: Any = create_model("Techniques", __base__=_Strict, **sections)
    extra: dict[str, Any] = {}
    for key, targets in short.items():
        kinds = tuple(_or_by_tensor(_annotated(info)) for _, info in targets)
        text = "Short key for " + ", ".join(meaning for meaning, _ in targets) + "."
        extra[key] = (Union[kinds], Field(None, description=text))  # noqa: UP007
    return create_model(
        "Entry",
        __base__=_Strict,
        enable=(bool, Field(None, description="false: no requested technique may act here.")),
        strip=(
            bool,
            Field(
                None,
                description="true: drop the dense weight that a technique replaced. false: keep "
                "it where the technique can fall back to it. `--strip-dense` is the default.",
            ),
        ),
        gating=(_Gating, Field(None, description="Quality that a fit must reach.")),
        autotune=(_Autotune, Field(None, description="Configurations to try at a site.")),
        techniques=(techniques_model, Field(None, description="Settings by technique.")),
        **extra,
    )


def _annotated(info: Any) -> Any:
    """A field's type with its constraints."""
    kind = info.annotation
    for constraint in info.metadata:
        kind = Annotated[kind, constraint]
    return kind


def _or_by_tensor(kind: Any) -> Any:
    return Union[kind, dict[_Tensor, kind]]  # noqa: UP007


def _all_entries(value: Mapping[str, Any]) -> list[tuple[tuple[str | int, ...], Any]]:
    entries: list[tuple[tuple[str | int, ...], Any]] = [(("defaults",), value.get("defaults", {}))]
    entries += [(("ranges", i), part) for i, part in enumerate(value.get("ranges", []))]
    for name, layer in value.get("layers", {}).items():
        entries.append((("layers", name), layer))
        tensors = layer.get("tensors", {})
        entries += [(("layers", name, "tensors", t), entry) for t, entry in tensors.items()]
    entries += [(("sites", name), entry) for name, entry in value.get("sites", {}).items()]
    return entries


def layers_of(text: str) -> range:
    """The layers of ``15-20`` or ``7``; none where the range runs backwards."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
