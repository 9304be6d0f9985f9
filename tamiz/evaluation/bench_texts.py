"""Speed of encoders: embeddings of a single text, and of some texts in one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tamiz.evaluation import bench
from tamiz.evaluation.bench import Child, Measurement
from tamiz.files.errors import TamizError

#: Tokens of a text where the caller names none, and texts of the larger runs.
LENGTHS, TEXTS = (16, 128, 512), 8


def measure_texts(
    children: Sequence[Child], lengths: Sequence[int] | None, progress: Callable[[str], None]
) -> list[Measurement]:
    """Measures encoders against each other, turn by turn.

    Args:
        children: Loaded encoders.
        lengths: Tokens of a text; None for those of `LENGTHS` that all encoders can read.
        progress: Takes the name of the measurement that begins.

    Returns:
        One measurement a child, in their order.

    Raises:
        TamizError: A length beyond a model's limit, or an engine fails.
    """
    shortest = min(children, key=lambda child: child.limit)
    if lengths is None:
        lengths = [n for n in LENGTHS if n <= shortest.limit] or [shortest.limit]
    lengths = sorted(set(lengths))
    if lengths[-1] > shortest.limit:
        raise TamizError(
            f"{shortest.name}: a text has at most {shortest.limit} tokens (max_position_embeddings "
            f"of config.json), found --context {lengths[-1]}"
        )
    results = [Measurement(child.load_s) for child in children]
    for child, result in zip(children, results, strict=True):
        child.embed(1, lengths[0])
        result.peak_rss = child.peak_rss()
    for texts in (1, TEXTS):
        for length in lengths:
            progress(f"{texts} x {length} tokens")
            for _ in range(bench.ROUNDS):
                for child, result in zip(children, results, strict=True):
                    time.sleep(bench.PAUSE)
                    speed = child.embed(texts, length)
                    result.embed.setdefault(f"{texts} x {length}", []).append(speed)
    return results
