"""What sources say of a mixture of experts: how many, in which layers, and how tokens choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from tamiz_exporters.decoder_config import Experts
from tamiz_exporters.gguf_hyperparameters import Hyperparameters
from tamiz_exporters.hf_fields import Fields
from tamiz_exporters.mixture_traits import (
    EXPERT_COUNTS,
    GGUF_EXPERTS,
    ROUTER_KEYS,
    MixtureTraits,
)

#: What the router makes of its scores, by GGUF's number.
SCORES = {1: "softmax", 2: "sigmoid", 3: "softmax_of_chosen"}


class _Settings(Protocol):
    def positive(self, key: str, default: int | None = None) -> int: ...

    def reject(self, key: str, found: object, expected: str) -> NoReturn: ...


def gguf_experts(
    of: Hyperparameters,
    traits: MixtureTraits,
    hidden: int,
    layers: int,
    among: Sequence[int] | None = None,
) -> Experts:
    """The mixture of a GGUF, and which layers have it.

    Args:
        of: The hyperparameters.
        traits: What the architecture says of its mixture.
        hidden: Width of the residual stream.
        layers: Number of layers.
        among: Those that have it, where their kinds say it.

    Raises:
        TamizError: A value is missing, absurd or not supported.
    """
    count, top = of.positive("expert_count"), of.positive("expert_used_count")
    if top > count:
        of.reject("expert_used_count", top, f"at most {count}, as many as experts")
    leading, step = traits.span_keys is not None and traits.span_keys[0], gguf_step(of, traits)
    first = of.whole("leading_dense_block_count") if leading else 0
    having = [number for number in range(first, layers) if (number + 1) % step == 0]
    having = having if among is None else list(among)
    if not having:
        of.reject("leading_dense_block_count", first, f"a layer with experts, of {layers}")
    at = f"blk.{having[0]}"
    of.tensor(f"{at}.ffn_gate_inp.weight", (count, hidden))
    width = of.positive(traits.gguf_width_key)
    shared = "expert_shared_feed_forward_length"
    shared = "expert_shared_count" if traits.gguf_counts else shared
    read = of.whole if traits.shared_counts else of.positive
    shared_width = read(shared) if traits.shared_key and not traits.shared_alike else 0
    shared_width *= width if traits.gguf_counts else 1
    shared_width += width if traits.shared_alike else 0
    _check_shared(of, traits, shared_width, width)
    return Experts(
        frozenset(having),
        count,
        top,
        width,
        **_gguf_router(of, traits, count, top, having[0]),
        shared_width=shared_width,
        shared_gate=bool(traits.names.shared_gate),
        biased=f"{at}.{GGUF_EXPERTS.bias}" in of.file.tensors,
        beside=traits.beside,
        scales_input=traits.scales_input,
        early=traits.early,
    )


def _check_shared(of: Hyperparameters, traits: MixtureTraits, wide: int, width: int) -> None:
    """Refuses another width of shared experts than their number gives: of one, or of all."""
    key = "expert_shared_feed_forward_length"
    if traits.gguf_counts and of.given(key) and of.positive(key) not in (width, wide):
        of.reject(key, of.positive(key), f"{width}, as wide as the others")


def gguf_step(of: Hyperparameters, traits: MixtureTraits) -> int:
    """Of so many layers of a GGUF the last has experts."""
    if traits.span_keys is None or not traits.span_keys[2]:
        return 1
    return of.positive("interleave_moe_layer_step", 1)


def _gguf_router(
    of: Hyperparameters, traits: MixtureTraits, count: int, top: int, first: int
) -> dict[str, Any]:
    """How scores become weights, and of which groups experts are taken."""
    if not traits.routed:
        return {"score": traits.score, "normalize": traits.normalize}
    key, norm = "expert_gating_func", "expert_weights_norm"
    score = traits.score if of.given(key) is None else SCORES.get(of.positive(key))
    biased = f"blk.{first}.{GGUF_EXPERTS.bias}" in of.file.tensors
    if score is None or (of.given(key) is None and biased and not traits.names.bias):
        found = "nothing, beside biases" if score else of.given(key)
        of.reject(key, found, " or ".join(map(str, SCORES)))
    return {
        "score": score,
        "normalize": of.flag(norm) if of.given(norm) is not None else traits.normalize,
        "scale": of.number("expert_weights_scale", 0.0) or 1.0,
        **_groups(of, count, top, "expert_group_count", "expert_group_used_count"),
    }


def hf_experts(
    of: Fields, traits: MixtureTraits, layers: int, among: Sequence[int] | None = None
) -> Experts:
    """The mixture of a ``config.json``, and which layers have it.

    Args:
        of: The fields.
        traits: What the architecture says of its mixture.
        layers: Number of layers.
        among: Those that have it, where their kinds say it.

    Raises:
        TamizError: A value is missing, absurd or not supported.
    """
    counts = [key for key in EXPERT_COUNTS if of.given(key) is not None]
    count = of.uniform(counts[0] if counts else traits.count_key)
    top = of.uniform(traits.top_key)
    if len(counts) > 1 and of.given(counts[1]) != count:
        of.reject(counts[1], of.given(counts[1]), f"{count}, as {counts[0]}")
    if top > count:
        of.reject(traits.top_key, top, f"at most {count}, as many as experts")
    width = of.uniform(traits.width_key)
    shared = _shared(of, traits.shared_key) if traits.shared_key else 0
    return Experts(
        _hf_layers(of, traits, layers) if among is None else frozenset(among),
        count,
        top,
        width,
        traits.score,
        **_hf_router(of, traits, count, top),
        shared_width=shared * width if traits.shared_counts else shared,
        shared_gate=bool(shared and traits.names.shared_gate),
        biased=bool(traits.names.bias),
        beside=traits.beside,
        scales_input=traits.scales_input,
        early=traits.early,
    )


def _shared(of: Fields, key: str) -> int:
    """Width or number of shared experts, perhaps listed for every layer."""
    return of.uniform(key) if isinstance(of.given(key), list) else of.whole(key)


def _hf_router(of: Fields, traits: MixtureTraits, count: int, top: int) -> dict[str, Any]:
    """Factors on the weights, and of which groups experts are taken."""
    normalize: bool | None = traits.normalize
    if traits.normalize_key:
        normalize = of.flag(traits.normalize_key)
        normalize = traits.normalized if normalize is None else normalize
    if not traits.routed:
        return {"normalize": normalize}
    if (score := of.text("scoring_func", traits.score)) != traits.score:
        of.reject("scoring_func", score, traits.score)
    factor, groups, taken = ROUTER_KEYS
    return {
        "normalize": normalize,
        "scale": of.number(factor, traits.scale),
        **_groups(of, count, top, groups, taken, traits.groups),
    }


def _hf_layers(of: Fields, traits: MixtureTraits, layers: int) -> frozenset[int]:
    """All but those that ``mlp_only_layers`` names, or of a span, and of so many the last."""
    if traits.listed_key and (listed := of.given(traits.listed_key)) is not None:
        known = isinstance(listed, list) and all(type(n) is int for n in listed)
        if not known or not {*listed} or {*listed} - {*range(layers)}:
            of.reject(traits.listed_key, listed, f"numbers of layers from 0 to {layers - 1}")
        return frozenset(listed)
    if traits.span_keys is not None:
        first, last, every = traits.span_keys
        end = of.given(last) if last else None
        end = layers - 1 if end in (None, -1) else of.whole(last)
        step = of.positive(every, 1) if every else 1
        if (kinds := of.given("mlp_layer_types")) is not None:
            known = isinstance(kinds, list) and not {*map(str, kinds)} - {"dense", "sparse"}
            if not known or len(kinds) != layers:
                of.reject("mlp_layer_types", kinds, f"{layers} times dense or sparse")
            return frozenset(number for number in range(layers) if kinds[number] == "sparse")
        span = range(of.whole(first, traits.first), min(end, layers - 1) + 1)
        return frozenset(number for number in span if (number + 1) % step == 0)
    step, without = of.positive("decoder_sparse_step", 1), []
    if (listed := of.given("mlp_only_layers")) is not None:
        if not isinstance(listed, list) or not all(type(value) is int for value in listed):
            of.reject("mlp_only_layers", listed, "a list of layers")
        without = listed
    return frozenset(n for n in range(layers) if n not in without and (n + 1) % step == 0)


def _groups(
    of: _Settings,
    count: int,
    top: int,
    key: str,
    taken_key: str,
    usual: tuple[int, int] = (1, 1),
) -> dict[str, int]:
    """Groups of experts, and how many a token takes."""
    groups, taken = of.positive(key, usual[0]), of.positive(taken_key, usual[1])
    if count % groups:
        of.reject(key, groups, f"a divisor of {count}")
    if taken > groups or taken * (count // groups) < top:
        of.reject(taken_key, taken, f"groups that hold {top} experts, of {groups}")
    return {"groups": groups, "top_groups": taken}
