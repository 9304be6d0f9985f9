"""What generation_config.json says about sampling, with the defaults of transformers 5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit import chain
from kit.command_line import ok, refused
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.runtime.recommended import recommended_sampling
from tamiz.runtime.sampling import Sampling

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
    ],
)
def test_a_field_that_cannot_be_obeyed_is_named(
    tiny_dense: Path, config: dict[str, Any], reason: str
) -> None:
    chain.change(tiny_dense, generation_config=config)
    with pytest.raises(TamizError, match=f"generation_config.json: {reason}"):
        recommended_sampling(Bundle.open(tiny_dense))


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
