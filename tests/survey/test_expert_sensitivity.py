"""What errors of experts' weights cost, against sums over tokens that are written out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type

from kit import tiny_gguf
from kit.mixtures import MIXTURES
from tamiz.api.site import Site, SiteKind
from tamiz.plugins import Plugins
from tamiz.survey import sensitivity
from tamiz.survey.export import export
from tamiz.survey.sensitivity import ExpertSensitivity, sensitivities
from tamiz.survey.survey import survey
from tamiz.system.progress import silent

TOKENS, TOP, EXPERTS, N, K = 11, 2, 4, 16, 6


@pytest.mark.parametrize("own", [False, True])
def test_only_tokens_that_take_an_expert_count(own: bool) -> None:
    """½ · mean over all tokens of Σ_n G_n (ΔW x)_n² with G of the tokens that take the expert."""
    rng = np.random.default_rng(2)
    taken = np.argsort(rng.random((TOKENS, EXPERTS)), axis=1)[:, :TOP].astype(np.int32)
    gradient = rng.standard_normal((TOKENS * TOP, N), dtype=np.float32)
    x = rng.standard_normal((TOKENS * (TOP if own else 1), K), dtype=np.float32)
    first, count = 3, TOKENS - 3
    site = Site("experts", SiteKind.EXPERTS, "node", experts=EXPERTS, top=TOP)
    sums = sensitivity._squares_of(site, gradient, taken, first).reshape(EXPERTS, N)
    rows, which = sensitivity._gone(x, taken, first, 1)
    outputs = (sums.ravel() / count).astype(np.float32)
    found = ExpertSensitivity(rows, outputs, which, EXPERTS)
    for expert in range(EXPERTS):
        error = rng.standard_normal((N, K), dtype=np.float32)
        squares, changes = [], []
        for token in range(first, TOKENS):
            for place in np.flatnonzero(taken[token] == expert):
                squares.append(gradient[token * TOP + place].astype(np.float64) ** 2)
                read = x[token * TOP + place] if own else x[token]
                changes.append((error.astype(np.float64) @ read) ** 2)
        np.testing.assert_allclose(sums[expert], np.sum(squares, axis=0), rtol=1e-6)
        expected = np.sum(squares, axis=0) / count @ np.mean(changes, axis=0)
        assert found.of_tile(expert, error) == pytest.approx(expected, rel=1e-5)


def test_an_expert_that_no_input_went_to_has_all_inputs() -> None:
    x = np.eye(2, K, dtype=np.float32)
    found = ExpertSensitivity(x, np.ones(2 * N, np.float32), np.zeros(2, np.int32), 2)
    error = np.ones((N, K), np.float32)
    assert found.of_tile(0, error) == found.of_tile(1, error) == N


def test_sites_of_experts_have_one(tmp_path: Path, plugins: Plugins) -> None:
    model = tiny_gguf.random_model(**MIXTURES["qwen3moe"])
    tiny_gguf.write(tmp_path / "tiny.gguf", model, Type.Q8_0)
    found = survey(export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", plugins), plugins)
    window = np.random.default_rng(0).integers(0, model.vocabulary, 40).tolist()
    known = sensitivities(found, [window, window[::-1]], silent)
    for site in (site for site in found.sites if site.experts):
        of_site = known[site.id]
        assert isinstance(of_site, ExpertSensitivity)
        assert of_site.inputs is not None
        assert of_site.inputs.shape == (len(of_site.taken), site.in_features)
        assert of_site.outputs.shape == (site.out_features,)
        never = np.setdiff1d(np.arange(site.experts), of_site.taken)
        of_each = of_site.outputs.reshape(site.experts, -1)
        assert (of_each.any(axis=1) | np.isin(np.arange(site.experts), never)).all()
