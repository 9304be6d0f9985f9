"""Rotary embeddings of config.json beside those that transformers computes.

The values are those of ``ROPE_INIT_FUNCTIONS`` of transformers 4.57.6 in torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamiz_exporters.architectures import HF_ARCHITECTURES
from tamiz_exporters.hf_fields import Fields
from tamiz_exporters.hf_rope import HfRope
from tamiz_exporters.rope import frequencies

HEAD = 16
#: Configurations, frequencies and what cosine and sine are multiplied by.
EXPECTED: list[tuple[dict[str, Any], list[float], float]] = [
    (
        {
            "max_position_embeddings": 1024,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 2.0,
                "original_max_position_embeddings": 64,
            },
        },
        [
            1.0,
            0.1903276,
            0.009401508,
            0.001823166,
            0.0003535534,
            6.856205e-05,
            1.329574e-05,
            2.578346e-06,
        ],
        1.0,
    ),
    (
        {
            "max_position_embeddings": 64,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "type": "yarn",
                "factor": 2.0,
                "original_max_position_embeddings": 64,
                "attention_factor": 1.2,
                "mscale": 0.7,
                "mscale_all_dim": 0.5,
                "truncate": False,
                "rope_type": "yarn",
            },
        },
        [
            1.0,
            0.1253985,
            0.01880302,
            0.003646333,
            0.0007071067,
            0.0001371241,
            2.659148e-05,
            5.156693e-06,
        ],
        1.2,
    ),
]
LONG: dict[str, Any] = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def rope(model_type: str, **config: Any) -> HfRope:
    values = {"max_position_embeddings": 1024, **config}
    return HfRope(Fields(Path("config.json"), values), HF_ARCHITECTURES[model_type], HEAD)


@pytest.mark.parametrize(("config", "frequency", "factor"), EXPECTED)
def test_values_are_those_of_transformers(
    config: dict[str, Any], frequency: list[float], factor: float
) -> None:
    found = rope("llama", **config).scaled()
    np.testing.assert_allclose(found.inverse_frequency, frequency, rtol=1e-5)
    assert found.factor == pytest.approx(factor)


@pytest.mark.parametrize("outside", [32, None])
def test_an_original_context_outside_of_the_scaling_counts_first(outside: int | None) -> None:
    """As transformers 5 decides for all kinds of scaling that have one."""
    kinds: dict[str, dict[str, Any]] = {
        "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "yarn": {"factor": 4.0},
        "longrope": LONG,
    }
    for kind, more in kinds.items():
        inside = {"rope_type": kind, **more, "original_max_position_embeddings": 64}
        own = {"original_max_position_embeddings": outside} if outside else {}
        found = rope("llama", rope_scaling=inside, **own).scaled()
        inside["original_max_position_embeddings"] = outside or 64
        expected = rope("llama", rope_scaling=inside).scaled()
        np.testing.assert_array_equal(found.inverse_frequency, expected.inverse_frequency)
        assert (found.factor, found.original_context) == (
            expected.factor,
            expected.original_context,
        )


def test_a_context_without_an_original_one_is_the_original() -> None:
    scaling = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1, "high_freq_factor": 4}
    found = rope("llama", max_position_embeddings=64, rope_scaling=scaling).scaled()
    original = {**scaling, "original_max_position_embeddings": 64}
    expected = rope("llama", rope_scaling=original).scaled()
    np.testing.assert_array_equal(found.inverse_frequency, expected.inverse_frequency)


def test_each_kind_of_layers_rotates_dimensions_of_its_own() -> None:
    groups = {
        "full_attention": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.25,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    both = rope("gemma3_text", rope_parameters=groups, partial_rotary_factor=0.5)
    for layers, base, dimensions in ((both.scaled(), 1e6, 4), (both.local(), 1e4, 8)):
        np.testing.assert_allclose(layers.inverse_frequency, frequencies(base, dimensions), 1e-6)


def test_a_base_may_be_as_large_as_that_of_falcon_h1() -> None:
    values = {"max_position_embeddings": 64, "rope_theta": 1e11}
    rope = HfRope(Fields(Path("config.json"), values), HF_ARCHITECTURES["falcon_h1"], HEAD)
    expected = 1e11 ** -(np.arange(0, HEAD, 2) / HEAD)
    np.testing.assert_allclose(rope.scaled().inverse_frequency, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("scaling", "base"),
    [
        ({"rope_type": "dynamic", "factor": 1.0, "alpha": 50.0}, 10000.0 * 50.0 ** (16 / 14)),
        ({"type": "dynamic", "alpha": 50.0}, 10000.0 * 50.0 ** (16 / 14)),
        ({"rope_type": "default", "alpha": 50.0}, 10000.0),
        ({"alpha": 50.0}, 10000.0),
    ],
)
def test_alpha_counts_where_the_kind_is_dynamic_alone(scaling: dict[str, Any], base: float) -> None:
    """As `HunYuanDenseV1RotaryEmbedding` of transformers 5.24 reads it."""
    found = rope("hunyuan_v1_dense", rope_scaling=scaling).scaled()
    expected = base ** (-np.arange(0, HEAD, 2) / HEAD)
    np.testing.assert_allclose(found.inverse_frequency, expected, rtol=1e-6)
