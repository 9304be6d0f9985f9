"""Configuration of the key/value filter."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

from pydantic import Field

from tamiz.api import POLICY_ONLY, TechniqueConfig


class Limits(NamedTuple):
    """How many keys are kept for their score.

    Attributes:
        keep: Keys.
        keep_fraction: Keys as a fraction of the context; the larger of the two limits counts.
        late_part: Last part of the layers.
        late_share: Factor of both limits in these layers.
    """

    keep: int
    keep_fraction: float
    late_part: float
    late_share: float


#: Where nothing is set, and where `keep` alone is: in every layer and context alike.
_DEFAULT, _KEEP_ALONE = Limits(640, 0.08, 0.2, 0.625), Limits(0, 0.0, 0.0, 1.0)


class StatePackConfig(TechniqueConfig):
    """How keys are sketched and how many are kept."""

    removed: ClassVar[dict[str, int]] = {"exact_layers": 0}

    mode: Literal["binary", "ternary"] = Field(
        "binary",
        description="Sketch of a key's element: `binary`, its sign; `ternary`, positive, zero or "
        "negative.",
        json_schema_extra={"flag": "--state-pack"},
    )
    eps: float = Field(
        0.5,
        ge=0,
        le=4,
        description="With `ternary`: largest element that counts as zero, in mean sizes of the "
        "key's elements.",
    )
    popcnt: bool = Field(
        False,
        description="Pack the query as the keys are, instead of 4 bits an element. Scores are "
        "faster and choose worse.",
    )
    keep: int | None = Field(
        None,
        ge=0,
        description="Keys kept for their score, in tokens. Set without the fraction and the late "
        "layers' settings, it holds in every layer and context. By default 640.",
    )
    keep_fraction: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Keys kept for their score, as a fraction of the context; the larger of this "
        "and `keep` counts. By default 0.08.",
        json_schema_extra=POLICY_ONLY,
    )
    late_part: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Last part of the layers, in which fewer keys are kept. By default 0.2.",
        json_schema_extra=POLICY_ONLY,
    )
    late_share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Keys kept in the last part of the layers, as a share of those kept in the "
        "others. By default 0.625.",
        json_schema_extra=POLICY_ONLY,
    )
    recent: int = Field(
        64,
        ge=1,
        description="Last keys that are always kept, in tokens.",
        json_schema_extra=POLICY_ONLY,
    )
    density: float = Field(
        0.4,
        gt=0,
        le=1,
        description="Largest fraction of the keys that the filter may keep. A step that would keep "
        "more attends to all keys.",
    )

    def limits(self) -> Limits:
        """The limits as set, with the defaults of the others."""
        given = {name: getattr(self, name) for name in Limits._fields}
        set_here = {name: value for name, value in given.items() if value is not None}
        return (_KEEP_ALONE if set_here.keys() == {"keep"} else _DEFAULT)._replace(**set_here)
