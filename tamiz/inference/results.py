"""What comes of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tamiz.runtime.logprobs import TokenLogprob
from tamiz.runtime.speculation.statistics import SpeculationStatistics
from tamiz.runtime.text.stream import Speed


@dataclass(frozen=True)
class Usage:
    """Tokens of a request.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Those of the prompt that were in the cache and were not run again.
        completion_tokens: Tokens that were generated.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Completion:
    """An answer.

    Attributes:
        text: The text, without a stop string.
        tokens: The tokens that were generated, those of a stop string included.
        finish_reason: ``stop``: the model ended the text, or a stop string did; ``length``:
            `max_new_tokens` or the context did.
        usage: Tokens of prompt and answer.
        speed: How long it took.
        speculation: What came of guessing tokens ahead.
        logprobs: One entry a token, if requested.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: Literal["stop", "length"]
    usage: Usage
    speed: Speed
    speculation: SpeculationStatistics
    logprobs: tuple[TokenLogprob, ...] | None = None
