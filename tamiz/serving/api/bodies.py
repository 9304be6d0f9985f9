"""Bodies of requests: the fields of OpenAI's API, and those that servers of this field add."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tamiz.files.errors import TamizError
from tamiz.runtime.sampling import Sampling
from tamiz.serving.chat import GrammarKind, Wish
from tamiz.serving.errors import bad_request


def _whole(value: Any) -> Any:
    """1.0 is an integer in JSON Schema, so it is one here."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
#: Answers to one request, and strings that end them.
MOST_CHOICES, MOST_STOPS = 16, 16


class Body(BaseModel):
    """A request; fields that it does not know are kept, to be reported.

    A field of another type is refused, as OpenAI's API does: the text "0.7" is no number.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        """A field that is null has its default, as in OpenAI's API."""
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def unknown(self) -> list[str]:
        """Names of fields that have no effect."""
        return sorted(self.model_extra or ())


class StreamOptions(Body):
    """How an answer is streamed."""

    include_usage: bool = False


class Grammar(Body):
    """A grammar that the answer follows."""

    type: Literal["lark", "gbnf", "regex"]
    value: str


class Generation(Body):
    """What requests of text have in common."""

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[Whole, Field(ge=0)] = 0
    min_p: Probability = 0.0
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**63)] | None = None
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] = 1.0
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    stop: str | list[str] | None = None
    n: Annotated[Whole, Field(ge=1, le=MOST_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    grammar: str | Grammar | None = None
    user: str | None = None

    def stops(self) -> tuple[str, ...]:
        """Strings that end the answer.

        Raises:
            ApiError: One is empty, or there are too many.
        """
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if "" in stops or len(stops) > MOST_STOPS:
            raise bad_request(f"expected at most {MOST_STOPS} strings that are not empty", "stop")
        return tuple(stops)

    def sampling(self, index: int = 0) -> Sampling:
        """How the tokens of a choice are drawn.

        Args:
            index: Number of the choice; each draws with a seed of its own.

        Raises:
            ApiError: A value out of its range.
        """
        try:
            return Sampling(
                temperature=self.temperature,
                top_p=self.top_p,
                top_k=self.top_k,
                min_p=self.min_p,
                seed=None if self.seed is None else self.seed % 2**63 + index,
                frequency_penalty=self.frequency_penalty,
                presence_penalty=self.presence_penalty,
                repeat_penalty=self.repetition_penalty,
                repeat_last_n=-1,
                logit_bias={int(token): bias for token, bias in (self.logit_bias or {}).items()},
            )
        except (TamizError, ValueError) as error:
            raise bad_request(str(error)) from error

    def own_grammar(self) -> tuple[GrammarKind, Any] | None:
        """The field `grammar`, whose text alone is llama.cpp's GBNF."""
        if self.grammar is None:
            return None
        if isinstance(self.grammar, str):
            return "gbnf", self.grammar
        return self.grammar.type, self.grammar.value

    def wish(self, index: int = 0) -> Wish:
        """What the request says of an answer, without what only some requests have."""
        return Wish(self.sampling(index), stop=self.stops(), grammar=self.own_grammar())
