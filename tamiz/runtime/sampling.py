"""Choosing the next token from logits, in the order of llama.cpp's samplers.

1. Logit bias; tokens that are never drawn get −∞.
2. Penalties, for each token t that is n > 0 times among the last `repeat_last_n` of the text:
   l_t ← (l_t / r if l_t > 0 else l_t · r) − n · frequency − presence.
3. top_k: the k largest logits.
4. top_p: the smallest set of likeliest tokens with Σ softmax(l) ≥ top_p.
5. min_p: tokens with softmax(l)_t ≥ min_p · max softmax(l).
6. Temperature: one token is drawn from softmax(l / temperature); 0 takes the largest logit.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tamiz.files.errors import TamizError

#: Largest number of a penalty or a finite bias: far beyond any logit, and float32 holds sums of it.
_LARGEST = 1e6


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; see the module's order. The defaults take the likeliest token.

    Attributes:
        temperature: Divides the logits; 0 takes the largest logit (greedy) and ignores `top_k`,
            `top_p`, `min_p` and `seed`.
        top_k: Draw among the k largest logits; 0 for all.
        top_p: Draw among the smallest set of likeliest tokens of at least this mass, in (0, 1].
        seed: Of numpy's default generator; None takes entropy from the system.
        min_p: Draw among tokens at least this many times as likely as the likeliest, in [0, 1].
        repeat_penalty: Divides positive logits of tokens that the text has, and multiplies negative
            ones; above 0, and 1 for none.
        frequency_penalty: Taken from a token's logit for each time that the text has it.
        presence_penalty: Taken from a token's logit if the text has it.
        repeat_last_n: Tokens at the end of the text, with its prompt, that the three penalties
            count; 0 for none and −1 for all.
        logit_bias: Added to the logits of tokens, by id; −∞ for tokens that are never drawn.
        ignore_eos: Never draw a token that ends an answer.

    Raises:
        TamizError: A value out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Checks the ranges."""
        if not 0.0 <= self.temperature < math.inf:
            raise TamizError(f"temperature is {self.temperature}, expected a finite number ≥ 0")
        if self.top_k < 0:
            raise TamizError(f"top_k is {self.top_k}, expected 0 (all tokens) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise TamizError(f"top_p is {self.top_p}, expected more than 0 and at most 1")
        if self.seed is not None and self.seed < 0:
            raise TamizError(f"seed is {self.seed}, expected 0 or more")
        if not 0.0 <= self.min_p <= 1.0:
            raise TamizError(f"min_p is {self.min_p}, expected 0 (off) to 1")
        if not 1 / _LARGEST <= self.repeat_penalty <= _LARGEST:
            raise TamizError(
                f"repeat_penalty is {self.repeat_penalty}, expected a number above 0, 1 for none"
            )
        for name in ("frequency_penalty", "presence_penalty"):
            if not abs(value := getattr(self, name)) <= _LARGEST:
                raise TamizError(f"{name} is {value}, expected a finite number")
        if self.repeat_last_n < -1:
            raise TamizError(
                f"repeat_last_n is {self.repeat_last_n}, expected a number of tokens, or -1 for all"
            )
        for token, bias in self.logit_bias.items():
            if not (-_LARGEST <= bias <= _LARGEST or bias == -math.inf):
                raise TamizError(
                    f"logit_bias of token {token} is {bias}, expected a finite number or -inf"
                )

    @property
    def penalises(self) -> bool:
        """Whether the draw of a token depends on the text before it."""
        penalties = self.repeat_penalty, self.frequency_penalty, self.presence_penalty
        return self.repeat_last_n != 0 and penalties != (1.0, 0.0, 0.0)


class Sampler:
    """Draws the tokens of one text; the same seed, text and logits give the same tokens."""

    def __init__(
        self, sampling: Sampling, text: Iterable[int] = (), never: Collection[int] = ()
    ) -> None:
        """Starts the random stream of `sampling.seed`.

        Args:
            sampling: How tokens are drawn.
            text: Token ids that the text begins with: the prompt, which penalties count.
            never: Token ids that are not drawn.
        """
        self._sampling = sampling
        # Greedy needs none, and numpy.random brings OpenSSL, 4 MB, into the process.
        self._random = np.random.default_rng(sampling.seed) if sampling.temperature else None
        self._numbers: deque[float] = deque()
        self._text = list(text) if sampling.penalises else []
        bias = {**sampling.logit_bias, **dict.fromkeys(never, -math.inf)}
        self._biased = np.fromiter(bias, np.int64, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        #: Tokens whose logits only fall: a largest logit of another token stays the largest.
        self._falling = set(never) if not (sampling.logit_bias or sampling.penalises) else None

    def __call__(self, logits: NDArray[np.float32]) -> int:
        """Draws one token, and adds it to the text.

        Args:
            logits: ``[V]``.

        Raises:
            TamizError: No token may be drawn.
        """
        token = self.preview(logits)
        if self._random is not None:
            self._numbers.popleft()
        if self._sampling.penalises:
            self._text.append(token)
        return token

    def follow(self, tokens: Iterable[int]) -> None:
        """Adds tokens to the text that were not drawn, such as those that a grammar forces."""
        if self._sampling.penalises:
            self._text += tokens

    def preview(self, logits: NDArray[np.float32], guessed: Ids[int] = ()) -> int:
        """The token that would be drawn after other draws.

        Args:
            logits: ``[V]``.
            guessed: The tokens of these other draws.
        """
        if self._random is None:
            return self._likeliest(logits, guessed)
        while len(self._numbers) <= len(guessed):
            self._numbers.append(self._random.random())
        tokens, probabilities = distribution(self.adjusted(logits, guessed), self._sampling)
        mass = np.cumsum(probabilities)
        drawn = np.searchsorted(mass, self._numbers[len(guessed)] * mass[-1], side="right")
        return int(tokens[min(drawn, len(tokens) - 1)])

    def _likeliest(self, logits: NDArray[np.float32], guessed: Ids[int]) -> int:
        token = int(logits.argmax())
        if self._falling is not None and token not in self._falling:
            return token
        return int(self.adjusted(logits, guessed).argmax())

    def adjusted(self, logits: NDArray[np.float32], guessed: Ids[int] = ()) -> NDArray[np.float32]:
        """The logits after steps 1 and 2; those of the caller are not written to.

        Args:
            logits: ``[V]``.
            guessed: Tokens after the text.

        Raises:
            TamizError: No token may be drawn.
        """
        sampling = self._sampling
        if not (sampling.penalises or len(self._biased)):
            return logits
        logits = logits.copy()
        logits[self._biased] += self._bias
        if sampling.penalises:
            text = [*self._text, *guessed]
            last = text if sampling.repeat_last_n < 0 else text[-sampling.repeat_last_n :]
            tokens, counts = np.unique(np.array(last, np.int64), return_counts=True)
            values, repeat = logits[tokens], np.float32(sampling.repeat_penalty)
            values = np.where(values > 0, values / repeat, values * repeat)
            taken = counts * sampling.frequency_penalty + sampling.presence_penalty
            logits[tokens] = values - taken.astype(np.float32)
        if logits.max() == -math.inf:
            raise TamizError("logit_bias leaves no token to draw, expected a finite one")
        return logits


def distribution(
    logits: NDArray[np.float32], sampling: Sampling
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The tokens that may be drawn and their probabilities: steps 3 to 6 of the module's order.

    Args:
        logits: ``[V]``.
        sampling: With a temperature above 0.

    Returns:
        Token ids ``[n]`` and probabilities ``[n]`` that sum to 1.
    """
    tokens = np.arange(len(logits))
    if 0 < sampling.top_k < len(logits):
        tokens = np.argpartition(logits, -sampling.top_k)[-sampling.top_k :]
    scaled = logits[tokens].astype(np.float64)
    scaled -= scaled.max()
    if sampling.top_p < 1.0:
        kept = _likely(_normalised(np.exp(scaled)), sampling.top_p)
        tokens, scaled = tokens[kept], scaled[kept]
    if sampling.min_p > 0.0:
        kept = np.flatnonzero(scaled >= math.log(sampling.min_p))
        tokens, scaled = tokens[kept], scaled[kept]
    return tokens, _normalised(np.exp(scaled / sampling.temperature))


def _likely(probabilities: NDArray[np.float64], mass: float) -> NDArray[np.int64]:
    """Places of the smallest set of largest probabilities that have at least `mass` together."""
    # Less likely ones are together at most 1 − mass: the set does not need them.
    likely = np.flatnonzero(probabilities > (1.0 - mass) / len(probabilities))
    order = likely[np.argsort(-probabilities[likely], kind="stable")]
    before = np.cumsum(probabilities[order]) - probabilities[order]
    kept: NDArray[np.int64] = order[before < mass]
    return kept


def _normalised(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    normalised: NDArray[np.float64] = weights / weights.sum()
    return normalised
