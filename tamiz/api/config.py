"""The configuration of a technique: what can be set, from flags, policies and Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, field_validator, model_validator
from pydantic.config import JsonDict

#: Largest whole number in a configuration.
_LARGEST = 2**31 - 1
#: ``json_schema_extra`` of a field that few set: policies have it, help and flag tables do not.
POLICY_ONLY: JsonDict = {"policy_only": True}


class TechniqueConfig(BaseModel):
    """Base of every technique's configuration. Unknown keys are errors.

    Each field carries a description with its unit, and its range as pydantic constraints. Its flag
    is ``--<technique>-<field>``; ``json_schema_extra={"flag": "--<technique>"}`` lets it share the
    technique's switch, ``json_schema_extra=POLICY_ONLY`` leaves it to policies. Whole numbers are
    at most 2³¹ − 1, which is what ops compute with.

    Attributes:
        removed: Settings of earlier versions that are constants now, each with its value. Policies
            and reports that set one to that value still load.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    removed: ClassVar[Mapping[str, Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_removed(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping):
            return fields
        for name in fields.keys() & cls.removed.keys():
            if fields[name] != cls.removed[name]:
                raise ValueError(f"{name} is no longer a setting; remove it")
        return {name: value for name, value in fields.items() if name not in cls.removed}

    @field_validator("*", mode="after")
    @classmethod
    def _fits_an_op(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise ValueError(f"Input should be at most {_LARGEST}")
        return value

    @property
    def reads_sensitivity(self) -> bool:
        """Whether fits read `Statistics.sensitivity`, which a build then measures where it can."""
        return False


class NoSettings(TechniqueConfig):
    """Nothing to choose."""
