"""Many sequences of one model: at once they have their own bits, and no memory stays behind."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling

#: What allocators may keep; a leaked cache of each sequence would be several times as much.
PASSING = 4e6


def answer(model: Model, seed: int) -> list[int]:
    return list(model.generate([1 + seed % 8, 5, 9], Sampling(temperature=0.8, seed=seed), 6))


def test_eight_sequences_at_once_have_the_bits_of_one_after_the_other(shared_dir: Path) -> None:
    model = Model.load(shared_dir, 2)
    alone = [answer(model, seed) for seed in range(64)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda seed: answer(model, seed), range(64))) == alone


def test_a_thousand_short_sequences_leave_no_memory_behind(shared_dir: Path) -> None:
    model = Model.load(shared_dir, 2)
    for seed in range(100):
        answer(model, seed)
    before = psutil.Process().memory_info().rss
    for seed in range(1000):
        answer(model, seed)
    assert psutil.Process().memory_info().rss - before < PASSING
