"""A technique for tests: the weight with noise of a chosen size, in a module so that it pickles."""

import time
from typing import Any

import numpy as np
import onnx_ir as ir
from pydantic import Field

from tamiz.api.cost import Cost
from tamiz.api.editing import GraphEditor
from tamiz.api.site import Site, SiteKind
from tamiz.api.technique import (
    Autotune,
    Claim,
    Fit,
    Mode,
    Resource,
    Technique,
    TechniqueConfig,
)


class NoisyConfig(TechniqueConfig):
    noise: float = Field(0.0, description="Standard deviation in units of the weight's.")
    worse: str = Field("", description="Id of a site with three times the noise.")
    seconds: float = Field(0.0, description="How long a fit takes.")


def fit(site: Site, weight: np.ndarray, statistics: Any, config: NoisyConfig) -> Fit:
    time.sleep(config.seconds)
    random = np.random.default_rng(sum(site.id.encode()))
    scale = config.noise * (3 if site.id == config.worse else 1) * float(weight.std())
    noise = random.normal(size=weight.shape).astype(np.float32)
    tensors = {"weight": np.ascontiguousarray(weight + np.float32(scale) * noise)}
    known = 0 if statistics is None else statistics.count
    return Fit(tensors, {}, {"tokens": float(known)}, 32.0 / (1 + config.noise))


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    graph = GraphEditor(model)
    linear = graph.linear(site)
    stored = fit.tensors["weight"] if site.transposed else fit.tensors["weight"].T
    weight = graph.constant(f"{site.weight}.noisy", np.ascontiguousarray(stored))
    linear.node.replace_input_with(list(linear.node.inputs).index(linear.weight), weight)
    if not fit.strip:
        linear.node.metadata_props["test.dense"] = "kept"
    return [linear.node]


def rewrite_steps(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """The noisy weight where the input is one token, the dense one where it is more."""
    graph = GraphEditor(model)
    linear = graph.linear(site)
    stored = fit.tensors["weight"] if site.transposed else fit.tensors["weight"].T
    noisy = graph.constant(f"{site.weight}.noisy", np.ascontiguousarray(stored))
    one = graph.constant(f"{site.weight}.one", np.array([1], np.int64))
    slot = list(linear.node.inputs).index(linear.weight)
    tokens = ir.node("Shape", [linear.node.inputs[1 - slot]], {"start": 1, "end": 2})
    step = ir.node("Equal", [tokens.outputs[0], one])
    chosen = ir.node("Where", [step.outputs[0], noisy, linear.weight])
    for node in (tokens, step, chosen):
        node.name = f"{site.node}/{node.op_type}"
        model.graph.insert_before(linear.node, node)
    linear.node.replace_input_with(slot, chosen.outputs[0])
    return [linear.node]


def dequantize(site: Site, fit: Fit) -> np.ndarray:
    return fit.tensors["weight"]


def cost(site: Site, config: NoisyConfig) -> Cost:
    return Cost(0, 0)


def schedule(site: Site, config: NoisyConfig) -> list[dict[str, float]]:
    return [{"noise": noise} for noise in (1.0, 0.5, 0.01)]


def is_values(site: Site) -> bool:
    return site.tensor == "attn_v"


def noisy(**changes: Any) -> Technique:
    declared: dict[str, Any] = {
        "name": "noisy",
        "version": "1",
        "summary": "test",
        "config": NoisyConfig,
        "site_kinds": frozenset({SiteKind.LINEAR}),
        "claims": (Claim(Resource.WEIGHTS, Mode.EXCLUSIVE),),
        "fit": fit,
        "rewrite": rewrite,
        "cost": cost,
        "dequantize": dequantize,
        "autotune": Autotune("noise", schedule),
        "policy_keys": {"noise": "noise"},
    }
    return Technique(**(declared | changes))
