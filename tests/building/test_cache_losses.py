"""What rounded keys and values cost is weighed by the gradients at their products."""

from pathlib import Path

import numpy as np
import pytest

from tamiz.api.site import Site, SiteKind
from tamiz.building.cache_losses import cache_loss
from tamiz.files.bundle import Bundle
from tamiz.plugins import Plugins
from tamiz.survey.sensitivity import Sensitivity, sensitivities
from tamiz.survey.survey import Survey, survey

IDS = np.random.default_rng(0).integers(2, 262, (2, 64)).tolist()


@pytest.fixture
def surveyed(tiny_dense: Path, plugins: Plugins) -> Survey:
    return survey(Bundle.open_dense(tiny_dense), plugins)


@pytest.fixture
def known(surveyed: Survey) -> dict[str, Sensitivity]:
    return dict(sensitivities(surveyed, IDS, lambda *step: None))


def attention(surveyed: Survey) -> Site:
    return next(site for site in surveyed.sites if site.kind is SiteKind.ATTENTION)


def test_an_error_costs_half_of_its_square_times_what_the_outputs_weigh(
    surveyed: Survey, known: dict[str, Sensitivity]
) -> None:
    site = attention(surveyed)
    weights = sum(
        float(known[f"layers.{site.layer}.{name}"].outputs.sum(dtype=np.float64))
        for name in ("attn_k", "attn_v")
    )
    found = cache_loss(surveyed, site, lambda rows: rows + np.float32(0.25), known)
    assert weights > 0
    assert found == pytest.approx(0.5 * 0.25**2 * weights, rel=1e-4)
    assert cache_loss(surveyed, site, lambda rows: rows, known) == 0


def test_rows_are_those_of_one_head(surveyed: Survey, known: dict[str, Sensitivity]) -> None:
    site, seen = attention(surveyed), []

    def rounded(rows: np.ndarray) -> np.ndarray:
        seen.append(rows.shape)
        return rows

    cache_loss(surveyed, site, rounded, known)
    assert [shape[1] for shape in seen] == [site.head_size] * 2


def test_eight_bits_lose_more_where_one_channel_is_large(
    surveyed: Survey, known: dict[str, Sensitivity], plugins: Plugins
) -> None:
    site, rounded = attention(surveyed), plugins.techniques()["kv-int8"].rounded_rows
    assert rounded is not None
    as_it_is = cache_loss(surveyed, site, rounded, known)

    def beside_a_large_one(rows: np.ndarray) -> np.ndarray:
        large = rows.copy()
        large[:, 0] = 100 * np.abs(rows).max()
        read = rounded(large)
        read[:, 0] = rows[:, 0]
        return read

    spread = cache_loss(surveyed, site, beside_a_large_one, known)
    assert as_it_is is not None
    assert spread is not None
    assert spread > 100 * as_it_is > 0


def test_what_is_not_known_is_not_weighed(surveyed: Survey, known: dict[str, Sensitivity]) -> None:
    site = attention(surveyed)
    del known[f"layers.{site.layer}.attn_v"]
    assert cache_loss(surveyed, site, lambda rows: rows, known) is None
