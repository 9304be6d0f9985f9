"""What generation_config.json says about sampling, with the defaults of transformers 5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit import chain, tiny_gguf
from kit.command_line import ok, refused
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.plugins import Plugins
from tamiz.runtime.recommended import recommended_sampling
from tamiz.runtime.sampling import Sampling
from tamiz.survey.export import export

NEVER = -float("inf")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, Sampling()),
        ({"temperature": 0.6, "top_p": 0.9}, Sampling()),
        ({"do_sample": True}, Sampling(1.0, top_k=50)),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1},
            Sampling(0.6, top_k=20, top_p=0.95, min_p=0.1),
        ),
        ({"repetition_penalty": 1.1}, Sampling(repeat_penalty=1.1)),
        ({"suppress_tokens": [3]}, Sampling(logit_bias={3: NEVER})),
        ({"bad_words_ids": [[4]], "token_healing": False}, Sampling(logit_bias={4: NEVER})),
        ({"do_sample": True, "top_k": 0, "num_beams": 1, "typical_p": 1.0}, Sampling(1.0)),
        ({"no_repeat_ngram_size": 0, "bad_words_ids": None, "sequence_bias": []}, Sampling()),
    ],
)
def test_the_fields_of_the_file(
    tiny_dense: Path, config: dict[str, Any], expected: Sampling
) -> None:
    chain.change(tiny_dense, generation_config=config)
    found = recommended_sampling(Bundle.open(tiny_dense))
    assert found.repeat_last_n == -1
    assert vars(found) | {"repeat_last_n": 64} == vars(expected)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"typical_p": 0.9}, "typical_p is 0.9, which tamiz does not know"),
        ({"num_beams": 4}, "num_beams is 4, which tamiz does not know"),
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size is 3, which"),
        ({"do_sample": True, "temperature": "hot"}, "temperature is 'hot', expected a number"),
        ({"do_sample": True, "top_p": 2}, "top_p is 2.0, expected more than 0"),
        ({"suppress_tokens": 3}, "suppress_tokens is 3, expected a list of ints"),
        ({"bad_words_ids": [[1, 2]]}, "bad_words_ids is .*, expected lists of one id each"),
        ({"mirostat": 2}, "mirostat is 2, which tamiz does not know"),
    ],
)
def test_a_field_that_cannot_be_obeyed_is_named(
    tiny_dense: Path, config: dict[str, Any], reason: str
) -> None:
    chain.change(tiny_dense, generation_config=config)
    with pytest.raises(TamizError, match=f"generation_config.json: {reason}"):
        recommended_sampling(Bundle.open(tiny_dense))


def test_a_field_that_is_not_known_is_a_warning(
    tiny_dense: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chain.change(tiny_dense, generation_config={"novelty": 3, "max_length": 20})
    recommended_sampling(Bundle.open(tiny_dense))
    assert "generation_config.json: fields that tamiz does not know are not read: novelty\n" in (
        caplog.text
    )


#: Keys of ``general.sampling``, and how llama.cpp draws then: its default for what is missing.
SUGGESTED: list[tuple[dict[str, Any], Sampling]] = [
    ({"temp": 0.6}, Sampling(0.6, top_k=40, top_p=0.95, min_p=0.05)),
    (
        {"temp": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.0, "penalty_repeat": 1.05},
        Sampling(0.7, top_k=20, top_p=0.8, repeat_penalty=1.05),
    ),
    (
        {"penalty_repeat": 1.2, "penalty_last_n": 32, "mirostat": 0},
        Sampling(0.8, 40, 0.95, min_p=0.05, repeat_penalty=1.2, repeat_last_n=32),
    ),
    ({"sequence": "top_k;temperature", "top_k": 5}, Sampling(0.8, top_k=5)),
    ({"temp": 0.0}, Sampling()),
]


@pytest.mark.parametrize(("keys", "expected"), SUGGESTED)
def test_a_gguf_file_suggests_its_sampling(
    tmp_path: Path, plugins: Plugins, keys: dict[str, Any], expected: Sampling
) -> None:
    entries = {f"general__sampling__{name}": value for name, value in keys.items()}
    tiny_gguf.write(tmp_path / "tiny.gguf", tiny_gguf.random_model(), **entries)
    dense = export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", plugins)
    assert recommended_sampling(dense) == expected


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"mirostat": 2}, "mirostat is 2"),
        ({"xtc_probability": 0.5}, "xtc_probability is 0.5"),
        ({"sequence": "temperature;top_k"}, "sampler_sequence is 'temperature;top_k'"),
    ],
)
def test_a_sampler_of_a_gguf_file_that_tamiz_lacks_is_named(
    tmp_path: Path, plugins: Plugins, keys: dict[str, Any], reason: str
) -> None:
    entries = {f"general__sampling__{name}": value for name, value in keys.items()}
    tiny_gguf.write(tmp_path / "tiny.gguf", tiny_gguf.random_model(), **entries)
    dense = export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", plugins)
    with pytest.raises(TamizError, match=f"{reason}, which tamiz does not know"):
        recommended_sampling(dense)


def test_commands_show_and_use_it(tiny_dense: Path) -> None:
    chain.change(tiny_dense, generation_config={"do_sample": True, "temperature": 0.7, "top_k": 5})
    shown = ok("inspect", tiny_dense)
    assert "recommended sampling: temperature 0.7, top-k 5; --sampling model uses it" in shown
    line = ["run", tiny_dense, "hello", "--seed", 3, "--max-new-tokens", 20, "--ignore-eos"]
    model = ok(*line, "--sampling", "model")
    assert model == ok(*line, "--temperature", "0.7", "--top-k", 5, "--repeat-last-n", -1)
    assert model != ok(*line)
    overridden = ok(*line, "--sampling", "model", "--temperature", 0)
    assert overridden == ok(*line, "--temperature", 0)
    chain.change(tiny_dense, generation_config={"num_beams": 4})
    assert "recommended sampling: not known: " in ok("inspect", tiny_dense)
    assert "num_beams is 4" in refused(*line, "--sampling", "model")
