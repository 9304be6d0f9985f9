"""A query's row of attention has the same bits however queries are cut into runs.

Decode steps, short runs and prompts are worked in different ways, with keys split or not: all sums
must be added in one order.
"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tamiz_ops

pytestmark = pytest.mark.slow

TOKENS = 420  # some ranges of keys, which decode steps split


class Text:
    """Queries, keys and values of a whole sequence."""

    def __init__(self, heads: tuple[int, int], dim: int, **attributes: float) -> None:
        rng = np.random.default_rng(0)
        self.dim, self.heads = dim, {"num_heads": heads[0], "kv_heads": heads[1]}
        self.attributes = attributes
        widths = (heads[0] * dim, heads[1] * dim, heads[1] * dim)
        self.qkv = [rng.standard_normal((1, TOKENS, n), np.float32) for n in widths]
        half = dim // 2
        self.frequencies = (10000.0 ** (-np.arange(half) / half)).astype(np.float32)

    def run(self, cuts: list[int], isa: str, threads: int) -> np.ndarray:
        """The bits of y ``[tokens, num_heads * dim]``, where runs end at `cuts`."""
        words = self.dim // 4 + 1 if self.attributes.get("cache_bits") == 8 else self.dim
        shape = (1, self.heads["kv_heads"], TOKENS, words)
        cache, rows = [np.zeros(shape, np.float32) for _ in range(2)], []
        for begin, end in pairwise([0, *cuts, TOKENS]):
            part = [np.ascontiguousarray(x[:, begin:end]) for x in self.qkv]
            positions = np.arange(begin, end)[None]
            y, *cache = tamiz_ops.run(
                "Attention",
                [*part, *cache, np.ones((1, end), np.int64), positions, self.frequencies],
                out=[True, *cache],
                isa=isa,
                threads=threads,
                **self.heads,
                **self.attributes,
            )
            rows.append(y[0])
        return np.concatenate(rows).view(np.int32)


@pytest.mark.parametrize("isa", tamiz_ops.cpu()["isas"])
@pytest.mark.parametrize("window", [{}, {"window": 70}, {"window": 200, "sinks": 0}])
@pytest.mark.parametrize("cap", [{}, {"softcap": 1.5}])
@pytest.mark.parametrize("cache", [{}, {"cache_bits": 8}])
@pytest.mark.parametrize(("heads", "dim"), [((3, 1), 64), ((7, 1), 32), ((4, 4), 20), ((4, 1), 72)])
def test_bits_do_not_depend_on_runs(
    heads: tuple[int, int],
    dim: int,
    cache: dict[str, int],
    cap: dict[str, float],
    window: dict[str, int],
    isa: str,
) -> None:
    text = Text(heads, dim, **cache, **cap, **window)
    expected = text.run(list(range(1, TOKENS)), isa, 1)

    @settings(max_examples=8, database=None, derandomize=True)
    @given(
        st.lists(st.integers(1, TOKENS - 1), unique=True, max_size=30),
        st.sampled_from([1, 2, 4]),
    )
    def check(cuts: list[int], threads: int) -> None:
        np.testing.assert_array_equal(text.run(sorted(cuts), isa, threads), expected)

    check()
