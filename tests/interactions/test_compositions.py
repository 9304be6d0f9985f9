"""The rows of the design's interaction table that compose: CLI → plan → graph → numbers.

Every bundle is built by the command line, and what it computes, token by token, is compared with
the NumPy reference of the composition (`llama_reference`).
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.composed import PROMPT, Compose, Composed, needs, strongest
from kit.llama_reference import Array
from tamiz.calibration.file import load as load_calibration
from tamiz_ops import reference

pytestmark = pytest.mark.slow


def window(tokens: int, sinks: int = 4) -> Callable[[Array, Array], Array]:
    return lambda i, j: (j > i - tokens) | (j < sinks)


def filtered(made: Composed, **choice: Any) -> None:
    """The op's reference of the filter, step by step, in place of the reference's attention."""
    llama, means = made.llama, made.constants("key_mean")
    half = llama.weights["layers.0.attn_q"].shape[0] // llama.heads // 2
    frequency = (llama.theta ** (-np.arange(half) / half)).astype(np.float32)
    scales = made.constants("key_scale") or [None] * len(means)
    layers = iter(zip(means, scales, strict=True))

    def attention(q: Array, k: Array, v: Array) -> Array:
        (mean, scale), rows = next(layers), []
        words = {"binary": 3, "ternary": 5}[choice["mode"]]
        row = half // 2 + 1 if choice.get("cache_bits") == 8 else 2 * half
        state = [np.zeros((1, llama.kv_heads, 0, n), np.float32) for n in (row, row, words)]
        starts = [0, *range(len(PROMPT), len(q)), len(q)]
        for begin, end in pairwise(starts):
            part = [x[None, begin:end] for x in (q, k, v)]
            y, *state = reference.run(
                "Attention",
                [
                    *part,
                    *state[:2],
                    np.ones((1, end), np.int64),
                    np.arange(begin, end)[None],
                    frequency,
                    state[2],
                    mean,
                    *[None] * 4,
                    scale,
                ],
                num_heads=llama.heads,
                kv_heads=llama.kv_heads,
                **{key: value for key, value in choice.items() if key != "mode"},
            )
            rows.append(y[0])
        return np.concatenate(rows)

    llama.attention = attention  # type: ignore[method-assign]


def test_packed_weights_are_the_model(compose: Compose) -> None:
    needs("block-quant")
    compose().check()


def test_packed_weights_and_a_window(compose: Compose) -> None:
    needs("block-quant", "window-attention")
    made = compose("--window-attention-tokens=12")
    assert made.order("layers.0.attention") == ["window-attention"]
    made.llama.sees = window(12)
    made.check()


@pytest.mark.parametrize(
    ("technique", "flags", "fields", "exact"),
    [
        (
            "proc-sparse",
            ("--proc-sparse-fanout=2", "--proc-sparse-shed-eps=0"),
            {"fanout": 2, "shed_eps": 0},
            True,
        ),
        ("seed-delta", ("--seed-delta-k=32",), {"k": 32}, False),
        ("ternary", ("--ternary-max-error=1",), {"max_error": 1}, True),
    ],
)
def test_one_owner_of_the_weights_and_a_window(
    compose: Compose, technique: str, flags: tuple[str, ...], fields: dict[str, Any], exact: bool
) -> None:
    """proc-sparse + window attention, and the other owners: they meet nowhere, and both count."""
    needs(technique, "window-attention")
    made = compose(f"--{technique}=on", *flags, "--window-attention-tokens=12", exact=exact)
    made.use_weights_of(technique, **fields)
    made.llama.sees = window(12)
    made.check()


@pytest.mark.parametrize("mode", ["binary", "ternary"])
def test_a_window_and_then_a_filter(compose: Compose, mode: str) -> None:
    """keys is narrowed in order: the filter chooses among what the window leaves."""
    needs("state-pack", "window-attention")
    flags = ("--state-pack-keep=8", "--state-pack-recent=4", "--state-pack-density=1")
    made = compose(
        f"--state-pack={mode}",
        *flags,
        "--window-attention-tokens=30",
    )
    assert made.order("layers.1.attention") == ["window-attention", "state-pack"]
    ternary = {"ternary": 1, "epsilon": 0.5} if mode == "ternary" else {}
    choice = {"window": 30, "sinks": 4, "keep": 8, "recent": 4, "density": 1.0}
    filtered(made, mode=mode, **choice, **ternary, query_bits=4)
    made.check()


def test_a_window_and_a_filter_over_a_cache_of_8_bits(compose: Compose) -> None:
    """What narrows the keys goes first; the cache is written and read in 8 bits all the same."""
    needs("state-pack", "window-attention", "kv-int8")
    flags = ("--state-pack-keep=8", "--state-pack-recent=4", "--state-pack-density=1")
    made = compose("--kv-int8=on", "--state-pack=on", *flags, "--window-attention-tokens=30")
    assert made.order("layers.1.attention") == ["window-attention", "state-pack", "kv-int8"]
    choice = {"window": 30, "sinks": 4, "keep": 8, "recent": 4, "density": 1.0}
    filtered(made, mode="binary", **choice, query_bits=4, cache_bits=8)
    # Activations of 16 bits round some bytes to the other side, which changes close choices.
    # Without the scales of the keys the largest difference is 0.012 of the largest logit.
    made.check(tolerance=5e-3)


def test_a_filter_that_would_keep_too_much_rests(compose: Compose) -> None:
    """Density above ρ at run time: every step attends to all keys."""
    needs("state-pack")
    made = compose(
        "--state-pack=on",
        "--state-pack-keep=8",
        "--state-pack-recent=4",
        "--state-pack-density=0.1",
    )
    made.check()


def test_a_sparse_filter_after_a_window(compose: Compose) -> None:
    needs("key-filter", "window-attention")
    made = compose("--key-filter-keep=8", "--window-attention-tokens=30")
    assert made.order("layers.0.attention") == ["window-attention", "key-filter"]
    # 64 recent keys and the first ones are all that the window leaves
    made.llama.sees = window(30)
    made.check()


@pytest.mark.parametrize(
    ("owner", "block", "flags", "fields"),
    [
        ("block-quant", 16, (), {}),
        (
            "proc-sparse",
            32,
            ("--proc-sparse=on", "--proc-sparse-fanout=2", "--proc-sparse-shed-eps=0"),
            {"fanout": 2, "shed_eps": 0},
        ),
        ("ternary", 16, ("--ternary=on", "--ternary-max-error=1"), {"max_error": 1}),
    ],
)
def test_a_mask_on_the_blocks_that_exist(
    compose: Compose,
    calibration: Path,
    owner: str,
    block: int,
    flags: tuple[str, ...],
    fields: dict[str, Any],
) -> None:
    """kwta + proc-sparse: what is computed is what both have; and kwta on packed weights."""
    needs("kwta", owner, "window-attention")
    made = compose(
        f"--calibration={calibration}",
        *flags,
        "--kwta-k=0.5",
        "--kwta-select=topk",
        "--kwta-target=mlp",
        f"--kwta-block={block}",
        "--kwta-center=false",
        "--kwta-weighted=false",
        "--window-attention-tokens=12",
        # attention's weights, which get no mask, are packed in tiles, smaller than planned
        exact=owner != "block-quant",
    )
    assert made.order("layers.1.ffn_down") == [owner, "kwta"]
    block_of = {site["site"]: site["block"] for site in made.plan["sites"]}
    assert block_of["layers.1.ffn_down"] == block
    known = load_calibration(calibration, made.found.bundle)
    made.use_weights_of(owner, known, **fields)
    # few wide blocks: next to a tie, rounding alone would decide which one wins
    masked = [s.id for s in made.found.sites if ".ffn_" in s.id]
    made.llama.masks = dict.fromkeys(masked, strongest(0.5, block))
    made.llama.sees = window(12)
    made.check()


def test_a_shortlist_on_packed_weights_a_window_and_a_filter(
    compose: Compose, calibration: Path
) -> None:
    """Several techniques on one model: int4, head shortlist, window, then filter."""
    needs("block-quant", "head-shortlist", "state-pack", "window-attention")
    made = compose(
        f"--calibration={calibration}",
        "--head-shortlist-keep=64",
        "--head-shortlist-dims=64",
        "--head-shortlist-rows=1",
        "--state-pack=binary",
        "--state-pack-keep=8",
        "--state-pack-recent=4",
        "--state-pack-density=1",
        "--window-attention-tokens=30",
    )
    assert made.order("output") == ["block-quant", "head-shortlist"]
    window_and_keep = {"window": 30, "sinks": 4, "keep": 8, "recent": 4, "density": 1.0}
    filtered(made, mode="binary", **window_and_keep, query_bits=4)
    (project,), (sketch,), (offset,) = map(made.constants, (".project", ".sketch", ".offset"))
    p = reference.dequantize(project, 8, 64, 64)
    s = reference.dequantize(sketch, 4, len(offset), 64)
    weight = made.llama.weights["output"]

    def head(h: Array) -> Array:
        exact, estimate = h @ weight.T, (h @ p.T) @ s.T + offset
        tiles = np.pad(estimate, ((0, 0), (0, -len(offset) % 16)), constant_values=-np.inf)
        order = np.argsort(-tiles.reshape(len(h), -1, 16).max(-1), axis=-1, kind="stable")
        chosen = np.zeros(order.shape, bool)
        np.put_along_axis(chosen, order[:, :4], True, axis=-1)
        return np.where(np.repeat(chosen, 16, axis=1)[:, : len(offset)], exact, estimate)

    made.llama.head = head
    made.check()
