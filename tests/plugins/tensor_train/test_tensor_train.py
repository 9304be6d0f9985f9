"""tt: the decomposition against NumPy, and the chain of products in a graph."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.sites import linear
from tamiz.api.site import SiteKind
from tamiz.api.technique import Claim, Fit, FitError, Mode, Resource, Technique, TechniqueConfig
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.files.bundle import Bundle
from tamiz.planning.choice import Choice
from tamiz.planning.plan import choose
from tamiz.planning.resolver import resolve
from tamiz.plugins import load
from tamiz.testing.trial import gemm, run
from tamiz_tensor_train.config import TensorTrainConfig
from tamiz_tensor_train.fit import cost, decompose, dequantize, dimensions, fit
from tamiz_tensor_train.plugin import TENSOR_TRAIN
from tamiz_tensor_train.rewrite import rewrite


def train(n: list[int], m: list[int], rank: int, seed: int = 0) -> np.ndarray:
    """A weight that is a train of that rank, its elements computed one by one."""
    random = np.random.default_rng(seed)
    ranks = [1, *[rank] * (len(n) - 1), 1]
    sizes = zip(n, m, pairwise(ranks), strict=True)
    cores = [random.standard_normal((i, j, *r)) for i, j, r in sizes]
    weight = np.empty((*n, *m))
    for place in np.ndindex(weight.shape):
        matrix = np.eye(1)
        for core, i, j in zip(cores, place[: len(n)], place[len(n) :], strict=True):
            matrix = matrix @ core[i, j]
        weight[place] = matrix[0, 0]
    return weight.reshape(np.prod(n), np.prod(m)).astype(np.float32)


@pytest.mark.parametrize(("n", "k", "cores"), [(24, 30, 3), (16, 12, 2), (7, 5, 3), (9, 9, 1)])
def test_dimensions_multiply_to_the_weight(n: int, k: int, cores: int) -> None:
    rows, columns = dimensions(n, k, cores)
    assert (len(rows), len(columns)) == (cores, cores)
    assert (np.prod(rows), np.prod(columns)) == (n, k)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_weight_that_is_a_train_is_recovered(rank: int) -> None:
    n, m = dimensions(64, 60, 3)
    weight = train(n, m, rank)
    made = fit(linear(64, 60), weight, None, TensorTrainConfig(tolerance=1e-4))
    assert made.metrics["tt.rank"] == rank
    np.testing.assert_allclose(
        dequantize(linear(64, 60), made), weight, atol=2e-6 * abs(weight).max()
    )


@given(tolerance=st.floats(0, 0.9), cores=st.integers(1, 4), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_the_error_is_at_most_the_tolerance(tolerance: float, cores: int, seed: int) -> None:
    weight = np.random.default_rng(seed).standard_normal((24, 36)).astype(np.float32)
    config = TensorTrainConfig(cores=cores, tolerance=tolerance)
    parts = decompose(weight, config)
    made = {f"core.{index}": core for index, core in enumerate(parts)}
    w = dequantize(linear(24, 36), Fit(made, {}, {}, 32.0))
    error = np.linalg.norm(w - weight) / np.linalg.norm(weight)
    assert error <= tolerance + 1e-6


@given(rank=st.integers(1, 40), cores=st.integers(1, 4), n=st.integers(1, 48), k=st.integers(1, 48))
@settings(max_examples=60)
def test_the_cost_of_a_rank_is_exact(rank: int, cores: int, n: int, k: int) -> None:
    config = TensorTrainConfig(rank=rank, cores=cores)
    weight = np.random.default_rng(0).standard_normal((n, k)).astype(np.float32)
    stored = sum(core.nbytes for core in decompose(weight, config))
    assert cost(linear(n, k), config).stored == stored


def test_a_train_larger_than_the_weight_is_refused() -> None:
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    with pytest.raises(FitError, match=r"its train would take \d\.\d\d times the weight's bytes"):
        fit(linear(64, 64), weight, None, TensorTrainConfig(tolerance=0.1))


@pytest.mark.parametrize("cores", [1, 2, 3, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_graph_multiplies_with_the_train(cores: int, transposed: bool) -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((40, 36)).astype(np.float32)
    place = linear(40, 36, transposed=transposed)
    made = fit(place, weight, None, TensorTrainConfig(cores=cores, rank=5))
    model = gemm(place, weight)
    rewrite(place, made, model)
    x = random.standard_normal((7, 36)).astype(np.float32)
    np.testing.assert_allclose(run(model, x), x @ dequantize(place, made).T, atol=1e-4)


def test_a_bias_is_added() -> None:
    random = np.random.default_rng(0)
    place, bias = linear(12, 8), random.standard_normal(12).astype(np.float32)
    weight = random.standard_normal((12, 8)).astype(np.float32)
    made = fit(place, weight, None, TensorTrainConfig(rank=3))
    model = gemm(place, weight)
    value = ir.Value(name="b", const_value=ir.tensor(bias, name="b"), shape=ir.Shape([12]))
    model.graph.register_initializer(value)
    node = model.graph[0]
    node.resize_inputs(3)
    node.replace_input_with(2, value)
    rewrite(place, made, model)
    x = random.standard_normal((2, 8)).astype(np.float32)
    np.testing.assert_allclose(run(model, x), x @ dequantize(place, made).T + bias, atol=1e-5)


def test_nothing_that_skips_inputs_can_stand_on_it() -> None:
    def unused(*_: Any) -> Any:
        raise AssertionError("the resolver runs nothing")

    mask = Technique(
        name="mask",
        version="1",
        summary="",
        config=TechniqueConfig,
        site_kinds=frozenset({SiteKind.LINEAR}),
        claims=(Claim(Resource.CANDIDATES, Mode.NARROWING, block=32),),
        requires=frozenset({"skippable-blocks"}),
        fit=unused,
        rewrite=unused,
    )
    chosen = [Choice(TENSOR_TRAIN, TensorTrainConfig()), Choice(mask, TechniqueConfig())]
    (conflict,) = resolve([linear(8, 8)], {"linear.w": chosen}).conflicts
    assert (conflict.rule, conflict.techniques) == ("required-capability", ("mask",))


def test_a_build_leaves_what_it_cannot_represent_to_int4(tiny_dense: Path) -> None:
    plugins, out = load(), tiny_dense.parent / "out"
    choices = choose(plugins.techniques(), {"tensor-train": {}})
    report = build(tiny_dense, out, choices, plugins, Options(max_dppl=None))
    for name in ("attn_q", "ffn_down"):
        refused, applied = report.sites[f"layers.0.{name}"].techniques
        assert "times the weight's bytes" in refused.decision.reason
        assert (applied.name, applied.decision.applied) == ("block-quant", True)
    ops = {node.op_type for node in ir.load(Bundle.open(out).model).graph}
    assert "Transpose" not in ops
