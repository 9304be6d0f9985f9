"""The logits of a position have the same bits however its sequence is cut into runs.

Held where the manifest says `equal_runs`: on every instruction set, with any number of threads.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tamiz_ops
from kit.equal_runs import MODELS, build_model
from tamiz.files.bundle import Bundle
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model

pytestmark = pytest.mark.slow

#: More keys than attention sums in one range, and more than it leaves to one task.
TOKENS = [(7 * i * i + 3 * i) % 250 + 2 for i in range(300)]


@pytest.fixture(scope="module", params=list(MODELS))
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, plugins: Plugins
) -> Path:
    return build_model(tmp_path_factory.mktemp("rows"), *MODELS[request.param], plugins)


def logits(model: Model, cuts: list[int]) -> np.ndarray:
    """The bits of all logits ``[tokens, V]``, where runs end at `cuts`."""
    sequence, rows = model.sequence(), []
    for begin, end in pairwise([0, *cuts, len(TOKENS)]):
        part = TOKENS[begin:end]
        found = sequence.step(part[0])[None] if end - begin == 1 else sequence.logits(part)
        rows.append(found.copy())
    return np.concatenate(rows).view(np.int32)


@pytest.mark.parametrize("isa", tamiz_ops.cpu()["isas"])
def test_bits_do_not_depend_on_how_tokens_are_cut_into_runs(
    built: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Bundle.open(built).manifest.equal_runs
    monkeypatch.setenv("TAMIZ_ISA", isa)
    models = [Model.load(built, threads) for threads in (1, 2, 3)]
    expected = logits(models[0], list(range(1, len(TOKENS))))

    @given(
        st.sampled_from(models),
        st.one_of(
            st.lists(st.integers(1, len(TOKENS) - 1), unique=True, max_size=40),
            # runs that verify guesses
            st.lists(st.integers(1, 17), min_size=10, max_size=40).map(
                lambda runs: [cut for cut in np.cumsum(runs).tolist() if cut < len(TOKENS)]
            ),
        ),
    )
    @settings(max_examples=5, database=None, derandomize=True)
    def check(model: Model, cuts: list[int]) -> None:
        np.testing.assert_array_equal(logits(model, sorted(cuts)), expected)

    check()
    np.testing.assert_array_equal(logits(models[1], []), expected)


def test_a_manifest_promises_no_equal_runs_of_other_products(dense_dir: Path) -> None:
    assert not Bundle.open(dense_dir).manifest.equal_runs
