"""The benchmark of channels chosen by the prompt: a made model, and the speed of guesses."""

import numpy as np
import pytest
from click.testing import CliRunner
from gguf.constants import GGMLQuantizationType as Type

from benchmarks.techniques import prompt_channels
from benchmarks.techniques.prompt_channels import MaskedModel
from kit.tiny_gguf import random_model, write
from tamiz.cli import main
from tamiz.files.bundle import Bundle
from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling

PROMPT = [5, 9, 2, 7, 5, 9]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("channels")
    write(folder / "tiny.gguf", random_model(), Type.Q4_0)
    made = CliRunner().invoke(main, ["export", str(folder / "tiny.gguf"), "-o", str(folder / "d")])
    assert made.exit_code == 0, made.output
    return Bundle.open(folder / "d")


def test_all_channels_guess_what_the_model_answers(bundle: Bundle) -> None:
    model = MaskedModel(bundle, 1)
    text = model.answer(PROMPT, 24)
    plain = list(Model.load(bundle.path, 1).generate(PROMPT, Sampling(), 24))
    assert text.ids[len(PROMPT) : len(PROMPT) + len(plain)] == plain
    for choice in prompt_channels.CHOICES:
        found = prompt_channels.drafted(model, text, 1.0, choice)
        assert found["right"] == [prompt_channels.DEPTH] * len(text.starts)
        assert found["kl"] == pytest.approx(0, abs=1e-6)
        assert prompt_channels.drafted(model, text, 0.1, choice)["kl"] > 1e-4


def test_the_strongest_channels_of_a_layer_are_chosen(bundle: Bundle) -> None:
    model = MaskedModel(bundle, 1)
    model.worth = [np.array([1, 1, 8, 1], np.float32)]
    squares = np.array([[0.4, 0.1, 0.2, 0.3], [0.0, 0.1, 0.2, 0.7]], np.float32)
    (factor,) = model.choose([squares], 0.5)
    assert factor.tolist() == [0, 0, 1, 1]


def test_the_look_up_guesses_what_repeats(bundle: Bundle) -> None:
    ids = [1, 2, 3] * 12
    text = prompt_channels.Text(ids, 9, {}, np.zeros((1, 1), np.float32), [])
    assert prompt_channels.looked_up(text)["right"] == [prompt_channels.DEPTH] * len(text.starts)


def test_the_best_number_of_guesses_decides() -> None:
    runs = [1.1, 1.2, 1.4]
    assert prompt_channels.best_speed([0.9, 1.7, 2.0], runs, 0.5) == pytest.approx(2.7 / 2.2)
    assert prompt_channels.best_speed([0.1, 0.1, 0.1], runs, 0.5) == 1
