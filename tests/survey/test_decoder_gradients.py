"""The backward pass through whole decoders, against differences of their losses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from kit import tiny_gguf
from kit.family_files import write_folder
from kit.family_shapes import EXPERTS
from kit.latents import LATENTS
from kit.streams import random_streams, write_gguf
from tamiz.api.site import Site, SiteKind
from tamiz.files.bundle import Bundle
from tamiz.plugins import load
from tamiz.survey import gradients
from tamiz.survey.activations import Activations, Values
from tamiz.survey.backward.products import has_weight
from tamiz.survey.backward.run import BackwardPass
from tamiz.survey.export import export
from tamiz.survey.survey import Survey, survey

IDS = np.random.default_rng(0).integers(2, 262, 24).tolist()


@pytest.fixture
def tiny(tiny_dense: Path) -> Survey:
    return survey(Bundle.open_dense(tiny_dense), load())


def linear(found: Survey) -> list[Site]:
    return [site for site in found.sites if site.kind == SiteKind.LINEAR]


def test_every_site_of_a_decoder_is_told_what_errors_of_its_inputs_cost(tiny: Survey) -> None:
    told = gradients.sensitivities(tiny, [IDS, IDS], lambda *_: None)
    again = gradients.sensitivities(tiny, [IDS, IDS], lambda *_: None)
    assert set(told) == {site.id for site in linear(tiny)}
    for site in linear(tiny):
        loss = told[site.id].inputs
        assert loss.shape == (site.in_features,)
        assert (loss > 0).all()
        np.testing.assert_array_equal(loss, again[site.id].inputs)
        assert told[site.id].tokens is None  # two windows: none to check what it predicts


def test_what_the_input_predicts_of_a_token_is_the_same_every_time(tiny: Survey) -> None:
    windows = [[(7 * i + 3 * n) % 50 for i in range(24)] for n in range(8)]
    told = gradients.sensitivities(tiny, windows, lambda *_: None)
    again = gradients.sensitivities(tiny, windows, lambda *_: None)
    for site in linear(tiny):
        tokens = told[site.id].tokens
        if tokens is not None:
            assert tokens.shape == (site.in_features + 1,)
            np.testing.assert_array_equal(tokens, again[site.id].tokens)
    assert any(loss.tokens is not None for loss in told.values())


@pytest.fixture
def capped(tmp_path: Path) -> Survey:
    """A gemma2, whose scores and logits reach into their soft caps."""
    model = tiny_gguf.random_model(
        architecture="gemma2", layers=2, window=8, soft_caps=(1.0, 2.0), hidden=32, ffn=64
    )
    tiny_gguf.write(tmp_path / "gemma2.gguf", model)
    source = str(tmp_path / "gemma2.gguf")
    return survey(export(source, tmp_path / "gemma2", load(), "float32"), load())


@pytest.fixture
def latent(tmp_path: Path) -> Survey:
    """Keys that are values, too."""
    tiny_gguf.write(tmp_path / "plm.gguf", tiny_gguf.random_model(**LATENTS["plm"]))
    dense = export(str(tmp_path / "plm.gguf"), tmp_path / "plm", load(), "float32")
    return survey(dense, load())


@pytest.fixture
def streams(tmp_path: Path) -> Survey:
    """Several residual streams, and layers that read the keys and values of others.

    Without gates that are cut: differences cross the cut.
    """
    write_gguf(tmp_path / "gemma3n.gguf", random_streams(loud=0.3, sparsity=()))
    dense = export(str(tmp_path / "gemma3n.gguf"), tmp_path / "gemma3n", load(), "float32")
    return survey(dense, load())


@pytest.fixture
def experts(tmp_path: Path) -> Survey:
    """Experts in ONNX's operators; a token takes all, as differences may not change the choice."""
    return of_family(tmp_path, "hunyuan moe", moe_topk=EXPERTS)


@pytest.fixture
def convolutions(tmp_path: Path) -> Survey:
    """Convolutions in ONNX's operators, which begin with a state; and experts with a bias."""
    return of_family(tmp_path, "lfm2 MoE", num_experts_per_tok=EXPERTS)


def of_family(path: Path, name: str, **changes: Any) -> Survey:
    write_folder(path / "hf", name, **changes)
    return survey(export(str(path / "hf"), path / "dense", load(), "float32"), load())


@pytest.mark.parametrize("kind", ["tiny", "capped", "latent", "streams", "experts", "convolutions"])
def test_the_way_back_through_a_whole_decoder(
    kind: str, request: pytest.FixtureRequest, monkeypatch: Any
) -> None:
    """The rows of a weight grow a little: the text's loss changes by Σ d · x · gradient."""
    tiny: Survey = request.getfixturevalue(kind)
    drawn, found = [], {}
    surprise, visits = gradients.surprise, BackwardPass.visits

    def record(*arguments: Any) -> Any:
        drawn.append(surprise(*arguments))
        return drawn[-1]

    def walk(*arguments: Any) -> Any:
        for visit in visits(*arguments):
            if has_weight(visit.node):
                found[visit.node.name] = visit.inputs[0]
            yield visit

    monkeypatch.setattr(gradients, "surprise", record)
    monkeypatch.setattr(BackwardPass, "visits", walk)
    gradients.sensitivities(tiny, [IDS], lambda *_: None)
    tokens = drawn[0][0].argmin(axis=1)

    def loss(model: ir.Model) -> float:
        logits = Values(replace(tiny, model=model), ["logits"])(IDS)["logits"].astype(np.float64)
        shifted = logits - logits.max(axis=1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return -float(log_p[np.arange(len(tokens)), tokens].sum())

    run, random = Activations(tiny), np.random.default_rng(0)
    x = run(IDS)
    for site in linear(tiny):
        direction = random.normal(size=site.in_features).astype(np.float32)
        losses = []
        for step in (0.005, -0.005):
            model = tiny.model.clone()
            weight = model.graph.initializers[site.weight]
            rows = weight.const_value.numpy()
            assert not site.transposed
            weight.const_value = ir.tensor(rows * (1 + step * direction)[:, np.newaxis])
            losses.append(loss(model))
        predicted = float((x[run.inputs[site.id]] * found[site.node][0] * direction).sum())
        assert (losses[0] - losses[1]) / 0.01 == pytest.approx(predicted, rel=5e-3, abs=2e-3), (
            site.id
        )
