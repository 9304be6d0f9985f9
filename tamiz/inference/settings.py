"""What a caller may say of an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from tamiz.files.errors import TamizError, did_you_mean
from tamiz.runtime.sampling import Sampling


@dataclass(frozen=True)
class GenerationSettings:
    """How an answer is generated.

    Attributes:
        max_new_tokens: Largest number of tokens; None for what the context leaves.
        stop: Strings that end the answer; they are not part of its text.
        logprobs: For each token, its logarithmic probability and those of this many likeliest
            tokens; None for none.
        sampling: How tokens are drawn.

    Raises:
        TamizError: A value out of its range.
    """

    max_new_tokens: int | None = None
    stop: Sequence[str] = ()
    logprobs: int | None = None
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        """Checks the ranges."""
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise TamizError(f"max_new_tokens is {self.max_new_tokens}, expected at least 1")
        if self.logprobs is not None and self.logprobs < 0:
            raise TamizError(f"logprobs is {self.logprobs}, expected 0 or more likeliest tokens")
        if "" in self.stop:
            raise TamizError("a stop string is empty, expected at least one character")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> GenerationSettings:
        """From keyword arguments: fields of this class, and of `Sampling` in their own right.

        Raises:
            TypeError: There is no such field, or `sampling` is given beside its fields.
            TamizError: A value out of its range.
        """
        own = {f.name for f in fields(cls)}
        drawing = {f.name for f in fields(Sampling)}
        for name in options:
            if name not in own | drawing:
                raise TypeError(f"unknown option {name!r}{did_you_mean(name, own | drawing)}")
        given = {name: value for name, value in options.items() if name in own}
        draws = {name: value for name, value in options.items() if name in drawing}
        if draws and given.get("sampling") is not None:
            raise TypeError(f"{next(iter(draws))!r} and 'sampling' exclude each other")
        if given.get("sampling") is None:
            given["sampling"] = Sampling(**draws)
        if isinstance(stop := given.get("stop"), str):
            given["stop"] = (stop,)
        return cls(**given)
