"""What an engine is asked for, and what it delivers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tamiz.runtime.logprobs import TokenLogprob
from tamiz.runtime.sampling import Sampling
from tamiz.serving.grammar import Matcher


@dataclass(frozen=True)
class Piece:
    """Text of an answer that has come.

    Attributes:
        texts: The text of each token; empty while a character or a stop string is incomplete.
        count: Tokens of the answer so far.
        tokens: The tokens that came with it, where logprobs are requested.
        cached: Tokens of the prompt that were read before.
    """

    texts: tuple[str, ...]
    count: int
    tokens: tuple[TokenLogprob, ...] = ()
    cached: int = 0

    @property
    def text(self) -> str:
        """The text of all tokens."""
        return "".join(self.texts)


@dataclass(frozen=True)
class End:
    """The end of an answer.

    Attributes:
        reason: ``stop`` (a stop token, a stop string, the grammar's end, the one call that is
            allowed) or ``length``.
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Those of them that were read before.
        completion_tokens: Tokens of the answer.
        reasoning_tokens: Those of them that are reasoning.
    """

    reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0


@dataclass(frozen=True)
class Failure:
    """Why an answer does not go on.

    Attributes:
        status: Status code of HTTP.
        message: One sentence.
    """

    status: int
    message: str


Event = Piece | End | Failure


@dataclass
class Job:
    """One answer that is requested.

    Attributes:
        prompt: Token ids.
        sampling: How tokens are drawn.
        max_tokens: Largest number of tokens of the answer.
        deliver: Gets each event; runs in the engine's thread, so it must not block.
        stop: Strings that end the answer.
        top_logprobs: Most probable tokens to report beside each; None for no logprobs.
        matcher: Place in the grammar that the answer follows.
        scope: Whose earlier tokens may be used.
        shown: Names of control tokens that are text of the answer; others are left out.
        deadline: Time of `time.monotonic` after which the answer fails; None for none.
        cancelled: Set by the client's side when nobody waits any more.
    """

    prompt: list[int]
    sampling: Sampling
    max_tokens: int
    deliver: Callable[[Event], None]
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    matcher: Matcher | None = None
    scope: bytes = b""
    shown: frozenset[str] = frozenset()
    deadline: float | None = None
    cancelled: bool = field(default=False, compare=False)
