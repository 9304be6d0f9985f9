"""Puts EventSelect before and EventSum after the product at a site, and their state into the graph.

The state ``past_event.<site>`` → ``present_event.<site>`` lies beside the KV cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tamiz.api import (
    Fit,
    FitError,
    GraphEditor,
    Site,
    attribute_of,
    has_input,
    input_of,
    output_of,
    product_of,
)

if TYPE_CHECKING:
    import onnx_ir as ir

_SELECT = (
    *("alpha", "theta", "keep", "together", "quorum", "budget_us", "age_max", "gap_every"),
    "dense_first",
)


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Wraps the product at `site`, whichever op with a mask it is.

    Raises:
        FitError: The node takes no mask, or the graph has no attention mask.
    """
    graph = GraphEditor(model)
    node, attention = graph.masked(site), graph.input("attention_mask")
    if attention is None:
        raise FitError("the graph has no input attention_mask, from which positions are counted")

    product = node.outputs[0]
    centred = _keep_centred(graph, node)
    given = {"k": site.in_features, "n": site.out_features, **fit.attributes}
    state = 3 + (site.in_features + site.out_features if given["alpha"] != 0 else 0)
    batch = None if attention.shape is None else attention.shape[0]
    past = graph.add_past(f"event.{site.id.removeprefix('layers.')}", [batch, state])
    tensors = {role: fit.tensors[role] for role in ("mean", "scale") if role in fit.tensors}
    if centred:
        tensors.pop("mean", None)
    select = _insert_select(graph, site, node, given, tensors, past)
    inputs = {
        "dy": product,
        "past": past,
        "plan": output_of(select, "plan"),
        "reference": output_of(select, "reference"),
        "base": _base(graph, site, fit, node, centred),
    }
    if float(given["budget_us"]) >= 0:
        inputs["started"] = output_of(select, "started")
    total = graph.insert(
        node,
        f"{node.name}/EventSum",
        "EventSum",
        inputs,
        {name: given[name] for name in ("k", "n", "alpha", "beta", "gap_tol")},
        [graph.value(""), graph.value("")],
        after=True,
    )
    graph.follow(product, total.outputs[0], renamed=f"{site.id}/event_dy")
    graph.add_present(total, "present", past, [batch, state])
    return [select, node, total, *([centred] if centred else [])]


def _insert_select(
    graph: GraphEditor,
    site: Site,
    node: ir.Node,
    given: Mapping[str, int | float | str],
    tensors: Mapping[str, np.ndarray],
    past: ir.Value,
) -> ir.Node:
    """The node that chooses the inputs of a product, before it."""
    candidates = input_of(node, "mask")
    names = ["delta", "mask", "plan", "reference"]
    names += ["started"] if float(given["budget_us"]) >= 0 else []
    constants = {
        role: graph.constant(f"{site.id}.event_{role}", tensor) for role, tensor in tensors.items()
    }
    select = graph.insert(
        node,
        f"{node.name}/EventSelect",
        "EventSelect",
        {
            "x": input_of(node, "x"),
            "past": past,
            "mean": constants.get("mean"),
            "scale": constants["scale"],
            "attention_mask": graph.input("attention_mask"),
            "candidates": candidates,
        },
        {name: given[name] for name in ("k", "n", "beta", *_SELECT)}
        | {"block": attribute_of(node, "block") if candidates is not None else 1},
        [graph.value(f"{site.id}/event_{name}") for name in names],
    )
    graph.connect(node, "x", output_of(select, "delta"))
    graph.connect(node, "mask", output_of(select, "mask"))
    graph.set(node, {"block": 1})
    return select


def _keep_centred(graph: GraphEditor, node: ir.Node) -> ir.Node | None:
    """The op before a product that has taken a mean off its inputs, if there is one.

    The expected inputs are then centred, too, so it takes the mean off in every run: also where
    its technique is switched off.
    """
    x = input_of(node, "x")
    before = None if x is None else x.producer()
    if before is None or not has_input(before, "center") or input_of(before, "center") is None:
        return None
    graph.connect(node, "bias", input_of(before, "shifted_bias"))
    for port in ("shifted_bias", "plain_bias"):
        graph.connect(before, port, None)
    before.resize_outputs(2)
    return before


def _base(
    graph: GraphEditor, site: Site, fit: Fit, node: ir.Node, centred: ir.Node | None
) -> ir.Value | None:
    """(1 − α) W μ − α b; None where it is 0."""
    alpha = float(fit.attributes["alpha"])
    base = np.zeros(site.out_features, np.float32)
    if "mean" in fit.tensors and not centred:
        base += np.float32(1 - alpha) * product_of(node, fit.tensors["mean"])
    bias = input_of(node, "bias") if has_input(node, "bias") else None
    if bias is not None:
        assert bias.const_value is not None
        base -= np.float32(alpha) * bias.const_value.numpy()
    return graph.constant(f"{site.id}.event_base", base) if base.any() else None
