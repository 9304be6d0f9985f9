"""What all parts of a report share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Metrics = dict[str, float | None]


class Record(BaseModel):
    """A part of the report: frozen, and strict about names and types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
