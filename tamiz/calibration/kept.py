"""Which windows of a calibration keep their tokens, and which are held out of fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tamiz.evaluation.windows import Window

#: Most windows that are held out.
HELD_OUT_WINDOWS = 16
_PAIR = 2


def fair_ranks(origins: Sequence[str], weights: Sequence[float]) -> list[float]:
    """Ranks of windows: two of each text by turns, of heavier texts sooner.

    Windows stay in pairs because two that follow each other are read as one of 1,024 tokens.
    """
    seen: Counter[str] = Counter()
    ranks = []
    for origin, weight in zip(origins, weights, strict=True):
        ranks.append((seen[origin] // 2 + 1) / weight)
        seen[origin] += 1
    return ranks


def held_out(origins: Sequence[str], windows: int) -> list[int]:
    """Which of the kept windows no fit reads: of every text, at most half of what was seen.

    They begin with a pair, as two windows that follow each other may be joined.

    Args:
        origins: The name of the text that each kept window is of.
        windows: How many windows were seen.

    Returns:
        Indices of kept windows, ascending; none of a single window.
    """
    kept, most = len(origins), min(HELD_OUT_WINDOWS, windows // 2)
    if most == 0 or kept == 1:
        return []
    groups: dict[str, list[int]] = {}
    for index, origin in enumerate(origins):
        groups.setdefault(origin, []).append(index)
    numbers: list[int] = []
    for group in groups.values():
        first = -(-len(group) * max(0, kept - most) // kept)
        numbers += group[first + first % 2 if len(group) > _PAIR else first :]
    return sorted(numbers) or list(range(max(1, kept - most), kept))


def split(windows: Sequence[Window], most: int) -> tuple[list[Window], list[Window]]:
    """Windows that fits read, and those that judge, both in order.

    Args:
        windows: All windows.
        most: Windows from which those that judge are taken, see `fair_ranks`.
    """
    ranks = fair_ranks([w.origin for w in windows], [w.weight for w in windows])
    first = sorted(range(len(windows)), key=lambda number: (ranks[number], number))[:most]
    chosen = held_out([windows[number].origin for number in first], len(windows))
    judging = {first[index] for index in chosen}
    fitting = [window for number, window in enumerate(windows) if number not in judging]
    return fitting, [window for number, window in enumerate(windows) if number in judging]
