"""States of a recurrence in reverse order, computed again from one in so many that were kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tamiz.survey.backward.node import Float

#: Of so many states one is kept.
EVERY = 32


def backwards(
    kept: Float, tokens: int, step: Callable[[int, Float], Float]
) -> Iterator[tuple[int, Float, Float]]:
    """Each token, the last first, with the state before it and the one after it.

    Args:
        kept: The states before tokens 0, `EVERY`, 2 `EVERY`, …
        tokens: Number of tokens.
        step: The state after a token, of its number and the state before it.
    """
    for number in reversed(range(len(kept))):
        begin = number * EVERY
        end = min(begin + EVERY, tokens)
        states = [kept[number]]
        for t in range(begin, end):
            states.append(step(t, states[-1]))
        for t in reversed(range(begin, end)):
            yield t, states[t - begin], states[t - begin + 1]
