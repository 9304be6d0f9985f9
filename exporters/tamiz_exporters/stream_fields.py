"""What sources say of several residual streams."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NoReturn

import numpy as np

from tamiz_exporters.decoder_config import Streams
from tamiz_exporters.gguf_hyperparameters import Hyperparameters
from tamiz_exporters.hf_fields import Fields

Reject = Callable[[str, Any, str], NoReturn]

#: Where a file of llama.cpp does not say it, what its code has.
_SHARING, _FIRST_SPARSE, _DEVIATIONS = 20, 10, 1.6448533535003662
#: Where a ``config.json`` of more than 10 layers does not say it, as in transformers.
_PATTERN = 0.95


def gguf_streams(of: Hyperparameters, hidden: int, layers: int) -> Streams:
    """The streams of a GGUF.

    Args:
        of: The hyperparameters.
        hidden: Width of a stream.
        layers: Number of layers.

    Raises:
        TamizError: A value is missing, absurd or not supported.
    """
    count = _count(of.positive("altup.num_inputs", 4), "altup.num_inputs", of.reject)
    _check_active(of.whole("altup.active_idx"), "altup.active_idx", of.reject)
    key = "activation_sparsity_scale"
    given, deviations = of.given(key), list[float | None]()
    if given is None:
        sparse = min(_FIRST_SPARSE, layers)
        deviations = [*[_DEVIATIONS] * sparse, *[None] * (layers - sparse)]
    else:
        listed = np.asarray(given, np.float64).ravel()
        if len(listed) != layers or np.isnan(listed).any() or (listed == np.inf).any():
            of.reject(key, given, f"{layers} numbers, as many as layers")
        deviations = [None if np.isneginf(value) else float(value) for value in listed]
    rank = of.tensor("blk.0.laurel_l.weight", (None, hidden)).shape[0]
    return Streams(count, hidden, rank, tuple(deviations))


def hf_stream_shape(of: Fields, hidden: int, layers: int) -> Streams:
    """The streams of a ``config.json``; arguments as those of `gguf_streams`.

    Raises:
        TamizError: A value is missing, absurd or not supported.
    """
    count = _count(of.positive("altup_num_inputs", 4), "altup_num_inputs", of.reject)
    _check_active(of.whole("altup_active_idx", 0), "altup_active_idx", of.reject)
    key = "activation_sparsity_pattern"
    given = of.given(key)
    if given is None:
        sparse = _FIRST_SPARSE if layers > _FIRST_SPARSE else 0
        given = [_PATTERN] * sparse + [0.0] * (layers - sparse)
    listed = given if isinstance(given, list) else [given] * layers
    if len(listed) != layers or not all(
        type(share) in (int, float) and 0 <= share < 1 for share in listed
    ):
        of.reject(key, given, f"{layers} numbers from 0 to less than 1, as many as layers")
    return Streams(
        count,
        hidden,
        of.positive("laurel_rank", 64),
        tuple(deviations_of(share) for share in listed),
        scaled=of.flag("altup_correct_scale") is not False,
    )


def deviations_of(share: float) -> float | None:
    """How many standard deviations above the mean this share of a normal distribution ends.

    In float32, as in transformers; None where it is nothing.
    """
    return float(np.float32(NormalDist().inv_cdf(share))) if share else None


def gguf_shared(of: Hyperparameters, layers: int) -> int:
    """How many of the last layers read the keys and values of others.

    Raises:
        TamizError: A value is absurd.
    """
    key = "attention.shared_kv_layers"
    if of.given(key) is None:
        return max(0, layers - _SHARING)
    return of.whole(key)


def hf_stream_fields(streams: Streams) -> dict[str, Any]:
    """What ``config.json`` says of them."""
    shares = [0.0 if z is None else NormalDist().cdf(z) for z in streams.deviations]
    return {
        "altup_num_inputs": streams.count,
        "altup_active_idx": 0,
        "altup_correct_scale": streams.scaled,
        "laurel_rank": streams.rank,
        "activation_sparsity_pattern": shares,
    }


def _count(count: int, key: str, reject: Reject) -> int:
    if count < 2:
        reject(key, count, "at least 2")
    return count


def _check_active(index: int, key: str, reject: Reject) -> None:
    if index:
        reject(key, index, "0")
