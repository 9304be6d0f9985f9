"""Random graphs in foreign forms: passes and builds give what plain ONNX Runtime gives.

The default matrix makes 300, which hypothesis shrinks where one is wrong. `tox -e fuzz` makes as
many as TAMIZ_FUZZ says, by numbers from TAMIZ_FUZZ_FIRST on: a number is a graph. Every graph goes
through the passes and a build in memory, some through the files of export and build as well.
A run that was ended goes on where the file TAMIZ_FUZZ_LOG ends.
"""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from kit.beside_onnxruntime import Refused, through_build
from kit.built_in_memory import check
from kit.many_graphs import BUILDS, check_numbers, numbered
from kit.random_graphs import example
from tamiz.plugins import load

MANY = "TAMIZ_FUZZ" in os.environ
TOTAL = int(os.environ.get("TAMIZ_FUZZ", "300"))
FIRST = int(os.environ.get("TAMIZ_FUZZ_FIRST", "0"))
LOG = os.environ.get("TAMIZ_FUZZ_LOG")
PLUGINS = load()
#: Share of comparisons of chaotic graphs, which say nothing.
MOST_BLIND = 0.01


@pytest.mark.slow
@settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(st.randoms(use_true_random=False))
def test_passes_and_builds_change_no_output(choices: random.Random) -> None:
    graph, build = example(choices), choices.choice(BUILDS)
    with suppress(Refused):  # onnxruntime lacks a kernel for an op at this opset
        check(graph.model, graph.inputs, PLUGINS, [build] if build else [])


@pytest.mark.skipif(not MANY, reason="many graphs: tox -e fuzz, or set TAMIZ_FUZZ")
def test_graphs_by_number() -> None:
    counts = check_numbers(FIRST, TOTAL, PLUGINS, Path(LOG) if LOG else None)
    print(counts)
    assert not counts.wrong
    assert counts.blind <= max(1, MOST_BLIND * TOTAL)


@pytest.mark.parametrize("number", range(FIRST, FIRST + max(30, TOTAL // 100)))
def test_exports_and_builds_change_no_output(number: int) -> None:
    """Loops are refused, as docs/guides/from-onnx.md says."""
    graph, _ = numbered(number)
    builds: tuple[dict[str, Any], ...] = ({}, {"block-quant": {"format": "q8_0"}})
    try:
        refusal = through_build(graph.model, graph.inputs, PLUGINS, builds)
    except Refused:
        return
    assert refusal is None or "operator Loop" in refusal
